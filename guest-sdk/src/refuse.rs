//! Verdicts of user functions on a single record, and the counts of what was left out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::{Failure, Tally};
use crate::time::{TimeError, Timestamp};

/// Why a record does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refuse {
    /// The record is left out and counted under this cause; its message is consumed.
    Skip(Cow<'static, str>),
    /// The whole message goes to the dead letters with this reason.
    Reject(String),
    /// The cycle ends with nothing committed.
    Fail(Failure),
}

impl From<Failure> for Refuse {
    fn from(failure: Failure) -> Self {
        Self::Fail(failure)
    }
}

impl From<TimeError> for Refuse {
    fn from(error: TimeError) -> Self {
        Self::Reject(error.to_string())
    }
}

/// Names the cause under which an absent value leaves its record out.
///
/// ```
/// use foldmq_guest::{OrSkip, Refuse};
/// assert_eq!(None::<i64>.or_skip("cancelled"), Err(Refuse::Skip("cancelled".into())));
/// ```
pub trait OrSkip<T> {
    /// The value, or the verdict to leave the record out and count it.
    ///
    /// # Errors
    /// [`Refuse::Skip`] where there is no value.
    fn or_skip(self, cause: &'static str) -> Result<T, Refuse>;
}

impl<T> OrSkip<T> for Option<T> {
    fn or_skip(self, cause: &'static str) -> Result<T, Refuse> {
        self.ok_or(Refuse::Skip(Cow::Borrowed(cause)))
    }
}

/// What an event-time function may return: milliseconds or a [`Timestamp`], also in an `Option`
/// (None leaves the record out under the cause `no-event-time`) or in a `Result`.
pub trait IntoTime {
    /// The event time in milliseconds.
    ///
    /// # Errors
    /// What becomes of a record without one.
    fn into_time(self) -> Result<i64, Refuse>;
}

impl IntoTime for i64 {
    fn into_time(self) -> Result<i64, Refuse> {
        Ok(self)
    }
}

impl IntoTime for Timestamp {
    fn into_time(self) -> Result<i64, Refuse> {
        Ok(self.ms())
    }
}

impl<T: IntoTime> IntoTime for Option<T> {
    fn into_time(self) -> Result<i64, Refuse> {
        self.or_skip("no-event-time")?.into_time()
    }
}

impl<T: IntoTime, E: Into<Refuse>> IntoTime for Result<T, E> {
    fn into_time(self) -> Result<i64, Refuse> {
        self.map_err(Into::into)?.into_time()
    }
}

/// Counts by cause.
#[derive(Debug, Default)]
pub(crate) struct Tallies(BTreeMap<Cow<'static, str>, u64>);

impl Tallies {
    pub(crate) fn add(&mut self, cause: impl Into<Cow<'static, str>>) {
        let count = self.0.entry(cause.into()).or_default();
        *count = count.saturating_add(1);
    }

    pub(crate) fn into_list(self) -> Vec<Tally> {
        let tally =
            |(cause, count): (Cow<'static, str>, u64)| Tally { cause: cause.into_owned(), count };
        self.0.into_iter().map(tally).collect()
    }
}
