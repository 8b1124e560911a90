//! `POST /api/v1/push` (data-plane 2).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::broker::{AppendError, PushError, PushItem, PushOutcome, Pushed};
use crate::http::AppState;
use crate::http::auth::Producer;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant};
use crate::http::shape::{self, List, Maybe, Object, Text};
use crate::types::id::DEFAULT_PARTITION;
use crate::types::json::check_payload;
use crate::types::limits::{NAME_BYTES_MAX, TRANSACTION_ID_BYTES_MAX};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request<'a> {
    #[serde(borrow)]
    items: Maybe<List<Maybe<Object<Item<'a>>>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
    #[serde(borrow)]
    transaction_id: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    payload: Option<&'a RawValue>,
}

/// One entry of the answer. The mixed casing is the contract's.
#[derive(Serialize)]
struct Shown<'a> {
    index: usize,
    message_id: Uuid,
    transaction_id: &'a str,
    #[serde(rename = "queueName")]
    queue_name: &'a str,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// Stores messages; each (queue, partition) commits on its own.
pub(in crate::http) async fn push(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Extension(producer): Extension<Producer>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let mut items = read(&body)?;
    for item in &mut items {
        item.producer_sub.clone_from(&producer.0);
    }
    drop(body);
    let pushed = match app.broker.push(tenant, items).await {
        Ok(pushed) => pushed,
        Err(PushError::Store(cause)) => return Err(cause.into()),
    };
    answer(&pushed)
}

/// Reads the items; one that is malformed refuses the whole request (data-plane 8).
fn read(body: &[u8]) -> Result<Vec<PushItem>, ApiError> {
    let request: Request<'_> = shape::object(body)?;
    let List(items) = match request.items {
        Maybe::Is(items) => items,
        Maybe::Missing | Maybe::Null => return Err(ApiError::bad("items is required")),
        Maybe::Other => return Err(ApiError::bad("items must be an array")),
    };
    items.into_iter().enumerate().map(|(index, item)| read_item(index, item)).collect()
}

fn read_item(index: usize, item: Maybe<Object<Item<'_>>>) -> Result<PushItem, ApiError> {
    let refuse = |field: &str, why: &str| ApiError::bad(format!("items[{index}].{field} {why}"));
    let Maybe::Is(Object(item)) = item else {
        return Err(ApiError::bad(format!("items[{index}] must be an object")));
    };
    let queue = match item.queue {
        Maybe::Is(queue) if queue.is_empty() => return Err(refuse("queue", "must not be empty")),
        Maybe::Is(queue) => queue.into_owned(),
        Maybe::Missing | Maybe::Null => return Err(refuse("queue", "is required")),
        Maybe::Other => return Err(refuse("queue", "must be a string")),
    };
    let partition = match item.partition {
        Maybe::Is(partition) => partition.into_owned(),
        Maybe::Missing | Maybe::Null => DEFAULT_PARTITION.to_owned(),
        Maybe::Other => return Err(refuse("partition", "must be a string")),
    };
    let transaction_id = match item.transaction_id {
        Maybe::Is(id) => Some(id.into_owned()).filter(|id| !id.is_empty()),
        Maybe::Missing | Maybe::Null => None,
        Maybe::Other => return Err(refuse("transactionId", "must be a string")),
    };
    for (field, text, bytes_max) in [
        ("queue", Some(&queue), NAME_BYTES_MAX),
        ("partition", Some(&partition), NAME_BYTES_MAX),
        ("transactionId", transaction_id.as_ref(), TRANSACTION_ID_BYTES_MAX),
    ] {
        if let Some(fault) = text.and_then(|text| shape::fault(text, bytes_max)) {
            return Err(refuse(field, &fault));
        }
    }
    let payload = item.payload.ok_or_else(|| refuse("payload", "is required"))?.get();
    check_payload(payload).map_err(|e| ApiError::bad(format!("items[{index}].payload: {e}")))?;
    Ok(PushItem {
        queue,
        partition,
        payload: payload.to_owned(),
        transaction_id,
        producer_sub: None,
    })
}

/// 201 with every item's outcome; 503 where nothing at all could be stored.
fn answer(pushed: &[Pushed]) -> Result<Response, ApiError> {
    let mut failure = None;
    let mut failed = 0;
    for item in pushed {
        if let PushOutcome::Failed(cause) = &item.outcome {
            failure = Some(cause);
            failed += 1;
        }
    }
    if let Some(cause) = failure {
        if failed == pushed.len() {
            return Err(match cause {
                AppendError::Stopping => ApiError::stopping(),
                AppendError::Store(_) => {
                    ApiError::unavailable("the store failed; a retry with the same ids is safe")
                        .source(cause.clone())
                }
            });
        }
        tracing::warn!(%cause, failed, of = pushed.len(), "items of a push were not stored");
    }
    let results: Vec<Shown<'_>> = pushed.iter().enumerate().map(result).collect();
    Ok((StatusCode::CREATED, Json(results)).into_response())
}

fn result((index, pushed): (usize, &Pushed)) -> Shown<'_> {
    let (status, offset, error) = match &pushed.outcome {
        PushOutcome::Stored(s) if s.duplicate => ("duplicate", Some(s.offset), None),
        PushOutcome::Stored(s) => ("queued", Some(s.offset), None),
        PushOutcome::Buffered(_) => ("buffered", None, None),
        PushOutcome::Failed(AppendError::Stopping) => {
            ("failed", None, Some("the broker is stopping"))
        }
        PushOutcome::Failed(AppendError::Store(_)) => {
            ("failed", None, Some("the store failed; a retry with the same id is safe"))
        }
    };
    Shown {
        index,
        message_id: pushed.message_id(),
        transaction_id: &pushed.transaction_id,
        queue_name: &pushed.queue,
        status,
        offset,
        error,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::broker::Stored;

    fn refused(body: &str) -> String {
        format!("{:?}", read(body.as_bytes()).expect_err("refused"))
    }

    /// data-plane 5, 9, 11, 12
    #[test]
    fn items_are_read_with_their_defaults() {
        let items = read(
            br#"{"items":[
                {"queue":"a\u002fb","payload":{"z":1.0, "a":"\u0000"},"partition":null},
                {"queue":"q","partition":"","payload":null,"transactionId":"","traceId":5}]}"#,
        )
        .expect("good");
        assert_eq!(items[0].queue, "a/b");
        assert_eq!(items[0].partition, "Default");
        assert_eq!(items[0].payload, r#"{"z":1.0, "a":"\u0000"}"#);
        assert_eq!(items[1].partition, "");
        assert_eq!(items[1].payload, "null");
        assert_eq!(items[1].transaction_id, None);
        assert!(read(br#"{"items":[]}"#).expect("good").is_empty());
    }

    /// data-plane 8, 9, 12
    #[test]
    fn a_malformed_item_refuses_the_request_and_is_named() {
        assert!(refused("{}").contains("items is required"));
        assert!(refused(r#"{"items":{}}"#).contains("items must be an array"));
        let good = r#"{"queue":"q","payload":1}"#;
        for (item, text) in [
            ("[\"q\"]", "items[1] must be an object"),
            (r#"{"payload":1}"#, "items[1].queue is required"),
            (r#"{"queue":"","payload":1}"#, "items[1].queue must not be empty"),
            (r#"{"queue":7,"payload":1}"#, "items[1].queue must be a string"),
            (r#"{"queue":"q","data":1}"#, "items[1].payload is required"),
            (r#"{"queue":"q","payload":"\ud800"}"#, "items[1].payload: a string holds half"),
            (r#"{"queue":"q\u0001","payload":1}"#, "items[1].queue holds the control"),
            (r#"{"queue":"q","partition":3,"payload":1}"#, "items[1].partition must be"),
        ] {
            let error = refused(&format!(r#"{{"items":[{good},{item}]}}"#));
            assert!(error.contains(text), "{item}: {error}");
        }
        let long = "x".repeat(65_536);
        let error = refused(&format!(
            r#"{{"items":[{{"queue":"q","payload":1,"transactionId":"{long}"}}]}}"#
        ));
        assert!(error.contains("items[0].transactionId is 65536 bytes long, the limit is 65535"));
    }

    /// data-plane 2, 23
    #[test]
    fn results_have_the_casing_of_the_contract() {
        let stored = |duplicate| Pushed {
            outcome: PushOutcome::Stored(Stored {
                message_id: Uuid::from_u128(7),
                offset: 6,
                duplicate,
            }),
            transaction_id: "t".to_owned(),
            queue: "q".to_owned(),
        };
        let failed =
            Pushed { outcome: PushOutcome::Failed(AppendError::Stopping), ..stored(false) };
        let pushed = [stored(false), stored(true), failed];
        let shown: Vec<_> = pushed.iter().enumerate().map(result).collect();
        assert_eq!(
            serde_json::to_value(shown).expect("plain"),
            json!([
                {"index": 0, "message_id": Uuid::from_u128(7), "transaction_id": "t",
                 "queueName": "q", "status": "queued", "offset": 6},
                {"index": 1, "message_id": Uuid::from_u128(7), "transaction_id": "t",
                 "queueName": "q", "status": "duplicate", "offset": 6},
                {"index": 2, "message_id": Uuid::nil(), "transaction_id": "t",
                 "queueName": "q", "status": "failed", "error": "the broker is stopping"},
            ])
        );
        assert!(answer(&pushed).is_ok());
        assert!(answer(&pushed[2..]).is_err());
        assert!(answer(&[]).is_ok());
    }
}
