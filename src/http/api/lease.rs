//! `POST /api/v1/lease/{lease}/extend` (data-plane 5).

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Number, Value, json};
use uuid::Uuid;

use crate::broker::Extended;
use crate::http::AppState;
use crate::http::answer::time;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Names, Tenant};
use crate::http::shape::{self, Maybe};
use crate::types::limits::EXTEND_S;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request {
    seconds: Maybe<Number>,
}

/// Extends every partition of a live lease.
pub(in crate::http) async fn extend(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(lease): Names<String>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let extended = match Uuid::try_parse(&lease) {
        Ok(id) => app.broker.extend(tenant, id, seconds(&body)).await?,
        Err(_malformed) => Extended { renewed: 0, expires_at: None },
    };
    Ok(Json(answer(&lease, extended)))
}

/// The body may be anything (data-plane 73).
fn seconds(body: &[u8]) -> i64 {
    let request: Request = shape::object_or_default(body);
    request.seconds.ok().and_then(|n| n.as_i64()).unwrap_or(EXTEND_S).max(1)
}

fn answer(lease: &str, extended: Extended) -> Value {
    let until = extended.expires_at.map(time);
    json!({
        "leaseId": lease,
        "success": extended.renewed > 0,
        "renewed": extended.renewed,
        "newExpiresAt": until,
        "expiresAt": until,
        "lease_expires_at": until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// data-plane 73
    #[test]
    fn any_body_has_a_number_of_seconds() {
        for body in ["", "{}", "not json", "[5]", r#"{"seconds":null}"#, r#"{"seconds":"9"}"#] {
            assert_eq!(seconds(body.as_bytes()), 60, "{body}");
        }
        assert_eq!(seconds(br#"{"seconds":5}"#), 5);
        assert_eq!(seconds(br#"{"seconds":-5}"#), 1);
    }

    /// data-plane 71
    #[test]
    fn an_unknown_lease_has_null_expiries() {
        let answer = answer("x", Extended { renewed: 0, expires_at: None });
        assert_eq!(answer["success"], false);
        assert!(answer["expiresAt"].is_null() && answer["lease_expires_at"].is_null());
    }
}
