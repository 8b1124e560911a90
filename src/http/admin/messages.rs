//! Messages as operators look at them (control-plane 6).

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::dlq::{failed, gone, replayed};
use super::{json_text, partition_id, time};
use crate::broker::{ListedMessage, MessageDetail, MessageFilter, MessageStatus, ReplayError};
use crate::db::message::Scope;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Params, Tenant};
use crate::types::id::TxnHash;

fn word(status: MessageStatus) -> &'static str {
    match status {
        MessageStatus::DeadLetter => "dead_letter",
        MessageStatus::Completed => "completed",
        MessageStatus::Processing => "processing",
        MessageStatus::Pending => "pending",
    }
}

/// The end of the minute of an instant: it is what a form without seconds means.
fn end_of_minute(at: Timestamp) -> Timestamp {
    let into = at.as_nanosecond().rem_euclid(60_000_000_000);
    let start = Timestamp::from_nanosecond(at.as_nanosecond() - into).unwrap_or(at);
    start.checked_add(SignedDuration::from_mins(1)).unwrap_or(Timestamp::MAX)
}

/// Queues and partitions that parameters name.
pub(super) fn scope(params: &Params) -> Result<Scope, ApiError> {
    let namespace = params.filter("namespace")?;
    let namespace = if namespace.is_some() { namespace } else { params.filter("ns")? };
    Ok(Scope {
        queue: params.filter("queue")?,
        partition: params.filter("partition")?,
        namespace,
        task: params.filter("task")?,
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: Uuid,
    transaction_id: String,
    txn_hash: String,
    partition_id: Uuid,
    queue: String,
    partition: String,
    queue_path: String,
    namespace: String,
    task: String,
    status: &'static str,
    queue_status: &'static str,
    bus_status: Value,
    queue_priority: Value,
    segment: Value,
    payload_available: bool,
    data: Box<RawValue>,
    payload: Box<RawValue>,
    is_encrypted: bool,
    trace_id: Option<Uuid>,
    producer_sub: Option<String>,
    created_at: String,
    lease_expires_at: Option<String>,
}

#[derive(Serialize)]
pub(in crate::http) struct Listed {
    messages: Vec<Shown>,
    mode: Value,
    total: usize,
}

fn shown(m: ListedMessage) -> Result<Shown, ApiError> {
    let transaction_id = m.frame.transaction_id();
    let data = json_text(m.frame.payload)?;
    let partition = &m.partition;
    Ok(Shown {
        id: m.frame.message_id,
        txn_hash: hex::encode(TxnHash::of(&transaction_id).0),
        transaction_id,
        partition_id: partition.id.0,
        queue: partition.queue.clone(),
        partition: partition.name.clone(),
        queue_path: format!("{}/{}", partition.queue, partition.name),
        namespace: partition.namespace.clone(),
        task: partition.task.clone(),
        status: word(m.status),
        queue_status: word(m.queue_status),
        bus_status: json!({"consumedBy": m.consumed_by, "totalGroups": m.groups}),
        queue_priority: partition.options["priority"].clone(),
        segment: json!({"seq": m.first_offset, "frameIdx": m.frame_index}),
        payload_available: true,
        payload: data.clone(),
        data,
        is_encrypted: m.encrypted,
        trace_id: m.frame.trace_id,
        producer_sub: m.frame.producer_sub,
        created_at: time(m.created_at),
        lease_expires_at: m.leased_until.map(time),
    })
}

/// `GET /api/v1/messages`: newest first.
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Listed>, ApiError> {
    let page = params.page(200);
    let wanted = params.filter("status")?;
    let status = wanted.as_deref().and_then(|wanted| {
        use MessageStatus::{Completed, DeadLetter, Pending, Processing};
        [DeadLetter, Completed, Processing, Pending].into_iter().find(|s| word(*s) == wanted)
    });
    let filter = MessageFilter {
        scope: scope(&params)?,
        status,
        from: params.instant("from")?,
        to: params.instant("to")?.map(end_of_minute),
        // No message is in a state that there is not.
        limit: if wanted.is_some() && status.is_none() { 0 } else { page.limit },
        offset: page.offset,
    };
    let listing = app.broker.messages(tenant, &filter).await?;
    let kind = match (listing.queue_mode, listing.groups) {
        (false, 0) => "none",
        (true, 0) => "queue",
        (false, _) => "bus",
        (true, _) => "hybrid",
    };
    let mode = json!({
        "hasQueueMode": listing.queue_mode, "busGroupsCount": listing.groups, "type": kind,
    });
    let messages = listing.messages.into_iter().map(shown).collect::<Result<Vec<_>, _>>()?;
    let total = messages.len();
    Ok(Json(Listed { messages, mode, total }))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Detail {
    id: Uuid,
    transaction_id: String,
    partition_id: String,
    partition: String,
    queue: String,
    queue_path: String,
    namespace: String,
    task: String,
    status: &'static str,
    data: Box<RawValue>,
    payload: Box<RawValue>,
    trace_id: Option<Uuid>,
    producer_sub: Option<String>,
    is_encrypted: bool,
    created_at: String,
    error_message: Option<String>,
    retry_count: i32,
    lease_expires_at: Option<String>,
    queue_config: Value,
    mode: Value,
    consumer_groups: Vec<Value>,
}

fn detail(partition_id: String, m: MessageDetail) -> Result<Detail, ApiError> {
    let transaction_id = m.frame.transaction_id();
    let data = json_text(m.frame.payload)?;
    let options = &m.queue.options.echo;
    let queue_mode = m.progress.queue_mode();
    let groups = m.progress.groups().count();
    let config = ["leaseTime", "retryLimit", "retryDelay", "ttl", "priority"];
    Ok(Detail {
        id: m.frame.message_id,
        transaction_id,
        partition_id,
        queue_path: format!("{}/{}", m.queue.name, m.partition),
        partition: m.partition,
        status: word(m.status),
        payload: data.clone(),
        data,
        trace_id: m.frame.trace_id,
        producer_sub: m.frame.producer_sub,
        is_encrypted: m.encrypted,
        created_at: time(m.created_at),
        error_message: m.reason,
        retry_count: m.retry_count,
        lease_expires_at: queue_mode.and_then(|c| c.leased_until).map(time),
        queue_config: config
            .into_iter()
            .map(|key| (key.to_owned(), options[key].clone()))
            .collect(),
        mode: json!({
            "hasQueueMode": queue_mode.is_some(),
            "busGroupsCount": groups,
            "type": if groups > 0 { "bus" } else { "queue" },
        }),
        consumer_groups: m
            .progress
            .cursors()
            .map(|c| {
                json!({"name": c.group, "group": c.group, "consumed": c.committed >= m.offset,
                       "leaseExpiresAt": c.leased_until.map(time)})
            })
            .collect(),
        namespace: m.queue.namespace,
        task: m.queue.task,
        queue: m.queue.name,
    })
}

/// `GET /api/v1/messages/{partitionId}/{transactionId}`.
pub(in crate::http) async fn show(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((partition, transaction_id)): Names<(String, String)>,
) -> Result<Json<Detail>, ApiError> {
    let found = match partition_id(&partition) {
        Some(id) => app.broker.message(tenant, id, &transaction_id).await?,
        None => None,
    };
    let found = found.ok_or_else(|| ApiError::not_found("Message not found"))?;
    Ok(Json(detail(partition.to_ascii_lowercase(), found)?))
}

/// `DELETE /api/v1/messages/{partitionId}/{transactionId}`: the dead letters of an address.
pub(in crate::http) async fn delete(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((partition, transaction_id)): Names<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let deleted = match partition_id(&partition) {
        Some(id) => app.broker.dead_letter_delete(tenant, id, &transaction_id).await?,
        None => 0,
    };
    if deleted == 0 {
        let text = "only dead letters can be deleted, and there is none at this address";
        return Err(gone(text)
            .with("partitionId", partition)
            .with("transactionId", transaction_id));
    }
    Ok(Json(json!({
        "success": true,
        "partitionId": partition,
        "transactionId": transaction_id,
        "message": format!("{deleted} dead letter(s) deleted"),
    })))
}

/// `POST /api/v1/messages/{partitionId}/{transactionId}/retry`: the newest dead letter of an
/// address goes back where the message was.
pub(in crate::http) async fn retry(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((partition, transaction_id)): Names<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let outcome = match partition_id(&partition) {
        Some(id) => app.broker.dead_letter_retry(tenant, id, &transaction_id).await,
        None => Err(ReplayError::Gone),
    };
    let error = match outcome {
        Ok(replay) => return Ok(Json(replayed(&replay))),
        Err(ReplayError::Gone) => gone("there is no dead letter at this address"),
        Err(cause) => failed(cause),
    };
    Err(error.with("partitionId", partition).with("transactionId", transaction_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 6
    #[test]
    fn an_end_covers_its_minute() {
        let at = |text: &str| text.parse::<Timestamp>().expect("an instant");
        let end = at("2026-01-01T10:06:00Z");
        assert_eq!(end_of_minute(at("2026-01-01T10:05:00Z")), end);
        assert_eq!(end_of_minute(at("2026-01-01T12:05:59.999+02:00")), end);
        assert_eq!(end_of_minute(at("1969-12-31T23:59:30Z")), Timestamp::UNIX_EPOCH);
    }
}
