//! `/api/v1`: the control plane. What operators and SDKs look at, and the few things they move.

pub(super) mod dlq;
pub(super) mod groups;
pub(super) mod maintenance;
pub(super) mod messages;
pub(super) mod resources;
pub(super) mod status;
pub(super) mod traces;

use jiff::Timestamp;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::error::ApiError;
use super::extract::Params;
use crate::types::id::PartitionId;
use crate::types::limits::LIST_ROWS_MAX;
use crate::{db, log};

/// A time as the control plane shows it: UTC, always three digits (control-plane 1).
fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// A partition id of a path or a body; a malformed one is an unknown one.
fn partition_id(text: &str) -> Option<PartitionId> {
    Uuid::try_parse(text).ok().map(PartitionId)
}

/// Stored JSON text, to be shown as it was spelled.
fn json_text(text: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(text)
        .map_err(|_syntax| db::Error::from(log::Error::Malformed("payload")).into())
}

/// Rows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    limit: i64,
    offset: i64,
}

/// The lenient parameters of the control plane: what cannot be read counts as absent.
impl Params {
    /// A filter; an empty one is absent.
    fn filter(&self, name: &str) -> Result<Option<String>, ApiError> {
        Ok(self.text(name)?.filter(|text| !text.is_empty()))
    }

    /// A number that is not negative.
    fn count(&self, name: &str, default: i64) -> i64 {
        let given = self.text(name).ok().flatten().and_then(|text| text.trim().parse().ok());
        given.filter(|n: &i64| *n >= 0).unwrap_or(default)
    }

    fn page(&self, limit: i64) -> Page {
        Page {
            limit: self.count("limit", limit).min(LIST_ROWS_MAX),
            offset: self.count("offset", 0),
        }
    }

    fn switch(&self, name: &str, default: bool) -> bool {
        match self.text(name).ok().flatten().as_deref() {
            Some("true" | "1" | "yes") => true,
            Some("false" | "0" | "no") => false,
            _ => default,
        }
    }

    /// An instant; 400 for one that cannot be read, which would widen the listing.
    fn instant(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        self.filter(name)?.map(|text| instant(name, &text)).transpose()
    }
}

fn instant(name: &str, text: &str) -> Result<Timestamp, ApiError> {
    text.parse().map_err(|_syntax| {
        ApiError::bad(format!("{name} must be an ISO-8601 instant with an offset, not {text:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 1
    #[test]
    fn times_have_three_digits_and_are_cut() {
        let at = Timestamp::from_microsecond(1_789_893_065_104_999).expect("in range");
        assert_eq!(time(at), "2026-09-20T08:31:05.104Z");
        assert_eq!(time(Timestamp::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
    }

    /// control-plane 1
    #[test]
    fn parameters_that_cannot_be_read_are_absent() {
        let p = Params::of("limit=-1&offset=x&a=1&b=No&c=0&d=&f=7&big=99999&from=2026-01-01");
        assert_eq!(p.page(100), Page { limit: 100, offset: 0 });
        assert_eq!((p.count("f", 1), p.count("d", 1), p.count("big", 1)), (7, 1, 99_999));
        assert!(p.switch("a", false) && p.switch("b", true) && !p.switch("c", true));
        assert_eq!(p.filter("d").expect("UTF-8"), None);
        assert!(p.instant("from").is_err() && p.instant("d").expect("absent").is_none());
        assert_eq!(Params::of("limit=99999").page(1).limit, LIST_ROWS_MAX);
    }
}
