//! `POST /api/v1/transaction` (data-plane 6): 200 for a commit and for every rollback.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::ack;
use crate::broker::{TransactError, TransactPush, TransactResult, TransactStep};
use crate::http::AppState;
use crate::http::auth::Producer;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant};
use crate::http::shape::{self, List, Maybe, Object, Text};
use crate::types::id::DEFAULT_PARTITION;
use crate::types::json::check_payload;
use crate::types::limits::{NAME_BYTES_MAX, TRANSACTION_ID_BYTES_MAX};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    operations: Maybe<List<Maybe<Object<Operation<'a>>>>>,
    #[serde(borrow)]
    required_leases: Maybe<List<Text<'a>>>,
}

/// An operation: the fields of a flat push and of an ack side by side.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Operation<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(borrow)]
    items: Maybe<List<Maybe<Object<Item<'a>>>>>,
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
    #[serde(borrow)]
    transaction_id: Text<'a>,
    #[serde(borrow)]
    trace_id: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    partition_id: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    #[serde(borrow)]
    consumer_group: Text<'a>,
    #[serde(borrow)]
    lease_id: Text<'a>,
    #[serde(borrow)]
    error: Text<'a>,
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
    #[serde(borrow)]
    trace_id: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    data: Option<&'a RawValue>,
}

/// Why a request is refused before any work: 400 in the shape of a rollback.
struct Refused(String);

/// Commits all operations or none.
pub(in crate::http) async fn transaction(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Extension(producer): Extension<Producer>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let id = Uuid::now_v7();
    let request: Request<'_> = shape::object(&body)?;
    let (mut steps, leases) = match read(request) {
        Ok(read) => read,
        Err(Refused(text)) => {
            let body = rollback(id, "bad_request", &text);
            return Ok((StatusCode::BAD_REQUEST, Json(body)).into_response());
        }
    };
    for step in &mut steps {
        if let TransactStep::Push(push) = step {
            push.producer_sub.clone_from(&producer.0);
        }
    }
    let body = match app.broker.transact(tenant, steps, leases).await {
        Ok(results) => json!({
            "transactionId": id,
            "success": true,
            "results": results.iter().enumerate().map(shown).collect::<Vec<_>>(),
        }),
        Err(cause) => {
            let reason = match &cause {
                TransactError::Duplicate { .. } => "duplicate",
                TransactError::AckRejected(_) => "ack_rejected",
                TransactError::BadRequest(_) => "bad_request",
                TransactError::Store(source) => {
                    let cause = crate::telemetry::chain(source);
                    tracing::warn!(cause, "a transaction was not committed");
                    "db_error"
                }
            };
            rollback(id, reason, &cause.to_string())
        }
    };
    Ok(Json(body).into_response())
}

fn rollback(id: Uuid, reason: &str, error: &str) -> Value {
    json!({"transactionId": id, "success": false, "reason": reason, "error": error, "results": []})
}

fn shown((index, result): (usize, &TransactResult)) -> Value {
    match result {
        TransactResult::Acked { transaction_id, dead } => json!({
            "index": index, "type": "ack", "success": true, "transactionId": transaction_id,
            "error": null, "dlq": dead,
        }),
        TransactResult::Pushed { message_id, transaction_id, queue, duplicate } => {
            let mut shown = json!({
                "index": index, "type": "push", "success": true,
                "transactionId": transaction_id, "messageId": message_id, "queueName": queue,
            });
            if *duplicate {
                shown["duplicate"] = json!(true);
            }
            shown
        }
    }
}

fn read(request: Request<'_>) -> Result<(Vec<TransactStep>, Vec<Uuid>), Refused> {
    let Maybe::Is(List(operations)) = request.operations else {
        return Err(Refused("operations must be an array".to_owned()));
    };
    let mut steps = Vec::with_capacity(operations.len());
    for (index, operation) in operations.into_iter().enumerate() {
        let refuse = |why: &str| Refused(format!("operations[{index}] {why}"));
        let Maybe::Is(Object(mut operation)) = operation else {
            return Err(refuse("must be an object"));
        };
        let kind = std::mem::take(&mut operation.kind).ok().unwrap_or_default();
        match kind.as_ref() {
            "push" => read_push(index, operation, &mut steps)?,
            "ack" => steps.push(read_ack(index, operation)?),
            other => {
                return Err(refuse(&format!("has the unknown type {other:?}: push or ack")));
            }
        }
    }
    let leases = request.required_leases.ok().map(|List(leases)| leases).unwrap_or_default();
    // A lease that is no uuid never is a live one.
    let leases = leases
        .into_iter()
        .filter_map(Text::filled)
        .map(|text| Uuid::try_parse(&text).unwrap_or_default());
    Ok((steps, leases.collect()))
}

fn read_push(
    index: usize,
    operation: Operation<'_>,
    steps: &mut Vec<TransactStep>,
) -> Result<(), Refused> {
    let Maybe::Is(List(items)) = operation.items else {
        let flat = Item {
            queue: operation.queue,
            partition: operation.partition,
            transaction_id: operation.transaction_id,
            trace_id: operation.trace_id,
            payload: operation.payload,
            data: operation.data,
        };
        steps.push(TransactStep::Push(read_item(&format!("operations[{index}]"), flat)?));
        return Ok(());
    };
    for (at, item) in items.into_iter().enumerate() {
        let place = format!("operations[{index}].items[{at}]");
        let Maybe::Is(Object(item)) = item else {
            return Err(Refused(format!("{place} must be an object")));
        };
        steps.push(TransactStep::Push(read_item(&place, item)?));
    }
    Ok(())
}

fn read_item(place: &str, item: Item<'_>) -> Result<TransactPush, Refused> {
    let queue = item.queue.ok().unwrap_or_default().into_owned();
    let partition = match item.partition {
        Maybe::Is(partition) => partition.into_owned(),
        _ => DEFAULT_PARTITION.to_owned(),
    };
    let transaction_id = item.transaction_id.filled().map(std::borrow::Cow::into_owned);
    for (field, text, bytes_max) in [
        ("queue", Some(&queue), NAME_BYTES_MAX),
        ("partition", Some(&partition), NAME_BYTES_MAX),
        ("transactionId", transaction_id.as_ref(), TRANSACTION_ID_BYTES_MAX),
    ] {
        if let Some(fault) = text.and_then(|text| shape::fault(text, bytes_max)) {
            return Err(Refused(format!("{place}.{field} {fault}")));
        }
    }
    let payload = item.payload.or(item.data).map_or("{}", RawValue::get);
    check_payload(payload).map_err(|e| Refused(format!("{place}.payload: {e}")))?;
    Ok(TransactPush {
        queue,
        partition,
        payload: payload.to_owned(),
        transaction_id,
        trace_id: item.trace_id.ok().and_then(|text| Uuid::try_parse(&text).ok()),
        producer_sub: None,
    })
}

fn read_ack(index: usize, mut operation: Operation<'_>) -> Result<TransactStep, Refused> {
    let group = ack::group_of(std::mem::take(&mut operation.consumer_group));
    if let Some(fault) = shape::fault(&group, NAME_BYTES_MAX) {
        return Err(Refused(format!("operations[{index}].consumerGroup {fault}")));
    }
    let item = ack::Item {
        transaction_id: operation.transaction_id,
        partition_id: operation.partition_id,
        status: operation.status,
        consumer_group: Maybe::Missing,
        lease_id: operation.lease_id,
        error: operation.error,
    };
    Ok(TransactStep::Ack(ack::read(item, &group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(body: &str) -> Result<usize, String> {
        let request: Request<'_> = shape::object(body.as_bytes()).expect("an object");
        read(request).map(|(steps, _)| steps.len()).map_err(|refused| refused.0)
    }

    /// data-plane 142, 143
    #[test]
    fn one_bad_operation_refuses_the_whole_call() {
        let good = r#"{"operations":[{"type":"push","queue":"q","data":1},
            {"type":"push","items":[{"queue":"a"},{"queue":"b","payload":null}]},
            {"type":"ack","transactionId":"t","partitionId":"x"}],"requiredLeases":["l"]}"#;
        assert_eq!(steps(good), Ok(4));
        let bad = r#"{"operations":[{"type":"push","queue":"q"},{"type":"pull"}]}"#;
        assert!(steps(bad).is_err_and(|text| text.contains("operations[1]")));
        assert!(steps("{}").is_err());
    }
}
