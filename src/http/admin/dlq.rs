//! Dead letters (control-plane 7).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{json_text, time};
use crate::broker::{Destination, Replay, ReplayError};
use crate::db::dead_letter::{DeadLetterFilter, DeadLetterRow};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Names, Params, Tenant, check_name};
use crate::http::shape::{self, Text};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: Uuid,
    transaction_id: String,
    partition_id: Option<Uuid>,
    queue: String,
    partition: Option<String>,
    consumer_group: String,
    error_message: Option<String>,
    retry_count: i32,
    data: Box<RawValue>,
    producer_sub: Option<String>,
    created_at: String,
    failed_at: String,
}

#[derive(Serialize)]
pub(in crate::http) struct Listed {
    messages: Vec<Shown>,
    pagination: Value,
    total: usize,
}

fn shown(row: DeadLetterRow) -> Result<Shown, ApiError> {
    let (partition_id, partition) = row.partition.map(|(id, name)| (id.0, name)).unzip();
    Ok(Shown {
        id: row.id,
        transaction_id: row.transaction_id,
        partition_id,
        queue: row.queue,
        partition,
        consumer_group: row.group,
        error_message: row.reason,
        retry_count: row.retry_count,
        data: json_text(row.payload)?,
        producer_sub: row.producer_sub,
        created_at: time(row.created_at),
        failed_at: time(row.failed_at),
    })
}

/// `GET /api/v1/dlq`: newest failure first.
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Listed>, ApiError> {
    let page = params.page(100);
    let filter = DeadLetterFilter {
        queue: params.filter("queue")?,
        partition: params.filter("partition")?,
        group: params.filter("consumerGroup")?,
        from: params.instant("from")?,
        to: params.instant("to")?,
        limit: page.limit,
        offset: page.offset,
    };
    let rows = app.broker.dead_letters(tenant, &filter).await?;
    let messages = rows.into_iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    let total = messages.len();
    let pagination = json!({"limit": page.limit, "offset": page.offset});
    Ok(Json(Listed { messages, pagination, total }))
}

/// `DELETE /api/v1/dlq`: removes the records of one queue, or of one group there.
pub(in crate::http) async fn purge(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    let Some(queue) = params.filter("queue")? else {
        return Err(ApiError::bad("queue is required")
            .with("success", false)
            .with("message", "name the queue whose dead letters are to be removed"));
    };
    let group = params.filter("consumerGroup")?;
    let deleted = app.broker.db().dead_letter_purge(tenant, &queue, group.as_deref()).await?;
    let body = json!({"success": true, "deleted": deleted, "queue": queue, "consumerGroup": group});
    Ok(Json(body))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Redirect<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
}

/// Reads where a replay goes; the body is optional.
fn destination(body: &[u8]) -> Result<Destination, ApiError> {
    let request: Redirect<'_> = shape::object(body)?;
    let half = |field: &str, text: Text<'_>| {
        let Some(text) = text.optional(field, "a string")? else { return Ok(None) };
        let name = text.trim();
        if name.is_empty() {
            return Err(ApiError::bad(format!("{field} must not be empty")));
        }
        check_name(field, name)?;
        Ok(Some(name.to_owned()))
    };
    Ok(Destination {
        queue: half("queue", request.queue)?,
        partition: half("partition", request.partition)?,
    })
}

/// `POST /api/v1/dlq/{id}/replay`: the message of a record goes to the tail of a log.
pub(in crate::http) async fn replay(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(id): Names<String>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let to = destination(&body)?;
    let outcome = match Uuid::try_parse(&id) {
        Ok(id) => app.broker.dead_letter_replay(tenant, id, to).await,
        Err(_malformed) => Err(ReplayError::Gone),
    };
    match outcome {
        Ok(replay) => Ok(Json(replayed(&replay))),
        Err(ReplayError::Gone) => {
            Err(gone("there is no such dead letter, or it was replayed before")
                .with("result", "gone")
                .with("dlqId", id))
        }
        Err(cause) => Err(failed(cause).with("dlqId", id)),
    }
}

/// The answer of a replay that found its record.
pub(super) fn replayed(replay: &Replay) -> Value {
    let stored = replay.stored;
    let (result, status) =
        if stored.duplicate { ("duplicate", "duplicate") } else { ("moved", "queued") };
    // The record's message is not the one that is stored: its id is not shown as if it were.
    let message_id = if stored.duplicate { Uuid::nil() } else { stored.message_id };
    json!({
        "success": true,
        "result": result,
        "queue": replay.queue,
        "partition": replay.partition,
        "consumerGroup": replay.record.group,
        "dlqId": replay.record.id,
        "originalTransactionId": replay.record.transaction_id,
        "dlqRowRemoved": !stored.duplicate,
        "replayedAs": {
            "index": 0,
            "message_id": message_id,
            "transaction_id": replay.transaction_id,
            "queueName": replay.queue,
            "status": status,
            "offset": stored.offset,
        },
    })
}

/// 404 of a record that is not there.
pub(super) fn gone(message: &'static str) -> ApiError {
    ApiError::not_found("Message not found").with("success", false).with("message", message)
}

/// 500 of a replay, with what is known of the record.
pub(super) fn failed(cause: ReplayError) -> ApiError {
    let (removed, text) = if cause.is_unknown() {
        (Value::Null, "the outcome is unknown; a retry is safe, it appends nothing twice")
    } else {
        (Value::Bool(false), "nothing was changed; a retry is safe")
    };
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the store failed")
        .with("success", false)
        .with("result", "failed")
        .with("dlqRowRemoved", removed)
        .with("message", text)
        .source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 7
    #[test]
    fn either_half_of_a_destination_may_be_missing() {
        for body in ["", "{}", r#"{"queue":null,"other":5}"#] {
            assert_eq!(destination(body.as_bytes()).expect("good"), Destination::default());
        }
        let to = destination(br#"{"queue":" q ","partition":"p"}"#).expect("good");
        assert_eq!((to.queue.as_deref(), to.partition.as_deref()), (Some("q"), Some("p")));
        for body in [r#"{"queue":" "}"#, r#"{"partition":""}"#, r#"{"queue":5}"#, "[]", "{"] {
            assert!(destination(body.as_bytes()).is_err(), "{body}");
        }
    }
}
