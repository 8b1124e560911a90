//! `POST /api/v1/ack` and `/ack/batch` (data-plane 4): 200 for everything that parses.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::broker::{Ack, AckError, AckResult};
use crate::db::settle::AckStatus;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant};
use crate::http::shape::{self, List, Maybe, Object, Text};
use crate::telemetry;
use crate::types::id::{PartitionId, QUEUE_MODE, TenantId};
use crate::types::limits::NAME_BYTES_MAX;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Item<'a> {
    #[serde(borrow)]
    pub(super) transaction_id: Text<'a>,
    #[serde(borrow)]
    pub(super) partition_id: Text<'a>,
    #[serde(borrow)]
    pub(super) status: Text<'a>,
    /// Read on the single route only.
    #[serde(borrow)]
    pub(super) consumer_group: Text<'a>,
    #[serde(borrow)]
    pub(super) lease_id: Text<'a>,
    #[serde(borrow)]
    pub(super) error: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Batch<'a> {
    #[serde(borrow)]
    acknowledgments: Maybe<List<Maybe<Object<Item<'a>>>>>,
    #[serde(borrow)]
    consumer_group: Text<'a>,
}

/// One entry of the answer; all seven keys always.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::http) struct Shown {
    index: usize,
    transaction_id: String,
    success: bool,
    error: Option<String>,
    lease_released: bool,
    dlq: bool,
    noop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflated: Option<i64>,
}

/// `POST /api/v1/ack`
pub(in crate::http) async fn single(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json<Vec<Shown>>, ApiError> {
    let mut item: Item<'_> = shape::object(&body)?;
    let group = group_of(std::mem::take(&mut item.consumer_group));
    Ok(Json(settle(&app, tenant, vec![read(item, &group)], &group).await))
}

/// `POST /api/v1/ack/batch`
pub(in crate::http) async fn batch(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json<Vec<Shown>>, ApiError> {
    let batch: Batch<'_> = shape::object(&body)?;
    let items = batch.acknowledgments.optional("acknowledgments", "an array")?;
    let group = group_of(batch.consumer_group);
    let items = items.map(|List(items)| items).unwrap_or_default();
    // What is no object addresses nothing and fails as an item.
    let items = items.into_iter().map(|item| item.ok().map(|Object(item)| item));
    let acks = items.map(|item| read(item.unwrap_or_default(), &group)).collect();
    Ok(Json(settle(&app, tenant, acks, &group).await))
}

pub(super) fn group_of(group: Text<'_>) -> String {
    group.filled().map_or_else(|| QUEUE_MODE.to_owned(), std::borrow::Cow::into_owned)
}

pub(super) fn read(item: Item<'_>, group: &str) -> Ack {
    let lease = match item.lease_id {
        Maybe::Missing | Maybe::Null => None,
        Maybe::Is(text) if text.is_empty() => None,
        // Leases are uuids of version 7: the nil uuid never is a live one.
        Maybe::Is(text) => Some(Uuid::try_parse(&text).unwrap_or_default()),
        Maybe::Other => Some(Uuid::nil()),
    };
    let partition = item.partition_id.ok().and_then(|text| Uuid::try_parse(&text).ok());
    Ack {
        transaction_id: item.transaction_id.ok().unwrap_or_default().into_owned(),
        partition: partition.map(PartitionId),
        status: status_of(&item.status),
        group: group.to_owned(),
        lease,
        // The reason is stored as text, which cannot hold U+0000.
        error: item.error.ok().map(|text| text.replace('\0', "\u{fffd}")),
    }
}

/// The words are exact; an unknown one is a failure (data-plane 109).
fn status_of(status: &Text<'_>) -> AckStatus {
    match status {
        Maybe::Missing | Maybe::Null => AckStatus::Completed,
        Maybe::Is(word) => match word.as_ref() {
            "completed" | "success" | "acked" | "ok" => AckStatus::Completed,
            "retry" => AckStatus::Retry,
            "dlq" => AckStatus::DeadLetter,
            _ => AckStatus::Failed,
        },
        Maybe::Other => AckStatus::Failed,
    }
}

/// Settles and gives one entry an ack: a failure of the store fails the items, not the call.
async fn settle(app: &AppState, tenant: TenantId, acks: Vec<Ack>, group: &str) -> Vec<Shown> {
    let ids: Vec<String> = acks.iter().map(|ack| ack.transaction_id.clone()).collect();
    if shape::fault(group, NAME_BYTES_MAX).is_some() {
        // Such a group cannot have a cursor anywhere.
        return failed(ids, "consumer not found");
    }
    match app.broker.ack(tenant, acks).await {
        Ok(results) => shown(ids, results),
        Err(AckError::Store(cause)) => {
            let cause = telemetry::chain(&cause);
            tracing::warn!(cause, acks = ids.len(), "acks were not settled");
            failed(ids, "the store failed; a retry is safe")
        }
    }
}

fn failed(ids: Vec<String>, error: &str) -> Vec<Shown> {
    let result = AckResult { error: Some(error.to_owned()), ..AckResult::default() };
    let results = vec![result; ids.len()];
    shown(ids, results)
}

fn shown(ids: Vec<String>, results: Vec<AckResult>) -> Vec<Shown> {
    let pairs = ids.into_iter().zip(results).enumerate();
    pairs
        .map(|(index, (transaction_id, result))| Shown {
            index,
            transaction_id,
            success: result.success,
            error: result.error,
            lease_released: result.released,
            dlq: result.dead,
            noop: result.noop,
            conflated: result.conflated,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ack(body: &str) -> Ack {
        let item: Item<'_> = shape::object(body.as_bytes()).expect("an object");
        read(item, "g")
    }

    /// data-plane 109 and the table of status words
    #[test]
    fn status_words_are_exact() {
        for word in ["null", "\"completed\"", "\"success\"", "\"acked\"", "\"ok\""] {
            let status = ack(&format!(r#"{{"status":{word}}}"#)).status;
            assert_eq!(status, AckStatus::Completed, "{word}");
        }
        assert_eq!(ack("{}").status, AckStatus::Completed);
        assert_eq!(ack(r#"{"status":"retry"}"#).status, AckStatus::Retry);
        assert_eq!(ack(r#"{"status":"dlq"}"#).status, AckStatus::DeadLetter);
        for word in ["\"\"", "\"COMPLETED\"", "\"nack\"", "5", "true", "{}"] {
            let status = ack(&format!(r#"{{"status":{word}}}"#)).status;
            assert_eq!(status, AckStatus::Failed, "{word}");
        }
    }

    /// data-plane 84, 85
    #[test]
    fn an_absent_lease_is_unchecked_and_a_malformed_one_never_live() {
        for absent in ["{}", r#"{"leaseId":null}"#, r#"{"leaseId":""}"#] {
            assert_eq!(ack(absent).lease, None, "{absent}");
        }
        assert_eq!(ack(r#"{"leaseId":"zz"}"#).lease, Some(Uuid::nil()));
        assert_eq!(ack(r#"{"leaseId":7}"#).lease, Some(Uuid::nil()));
        assert_eq!(ack(r#"{"partitionId":"zz"}"#).partition, None);
        assert_eq!(ack(r#"{"error":"a\u0000"}"#).error.as_deref(), Some("a\u{fffd}"));
    }

    /// data-plane 4
    #[test]
    fn entries_have_all_seven_keys() {
        let entries = failed(vec!["t".to_owned()], "no");
        assert_eq!(
            serde_json::to_value(entries).expect("plain"),
            json!([{"index": 0, "transactionId": "t", "success": false, "error": "no",
                "leaseReleased": false, "dlq": false, "noop": false}])
        );
    }
}
