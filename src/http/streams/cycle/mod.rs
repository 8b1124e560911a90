//! `POST /streams/v1/cycle`: 200 for every element, refused ones with `success:false`.

mod read;
#[cfg(test)]
mod tests;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::broker::CycleError;
use crate::http::AppState;
use crate::http::answer::time;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant, own_partition};
use crate::types::cycle::{AppendReceipt, CycleReceipt};
use crate::types::id::PartitionId;
use read::{Asked, Ids, read};

/// Commits state ops, sink pushes and the ack of a worker, all or nothing.
pub(in crate::http) async fn cycle(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let Asked { ids, cycle } = read(&body, tenant)?;
    drop(body);
    own_partition(&app, tenant, ids.partition.map(PartitionId)).await?;
    let cycle = match cycle {
        Ok(cycle) => cycle,
        Err(reason) => return Ok(Json(failed(ids, &reason))),
    };
    match app.broker.cycle(cycle).await {
        Ok((receipt, _)) => Ok(Json(done(ids, &receipt))),
        Err(CycleError::Store(cause)) => Err(ApiError::store_failed(cause)),
        Err(CycleError::Stopping) => Err(ApiError::stopping()),
        Err(refused) => Ok(Json(failed(ids, &refused.to_string()))),
    }
}

/// The success envelope (streams E3-E6).
fn done(ids: Ids, receipt: &CycleReceipt) -> Value {
    let pushed: Vec<Value> = receipt.appends.iter().map(pushed).collect();
    let acked = receipt.settled.map(|settled| {
        json!({
            "success": true,
            "count": settled.count,
            "lease_released": settled.released,
            "dlq": false,
        })
    });
    json!({
        "success": true,
        "query_id": ids.query_text(),
        "partition_id": ids.partition_text(),
        "queueName": receipt.queue_name,
        "state_ops_applied": receipt.ops_applied,
        "push_results": pushed,
        "ack_result": acked,
    })
}

fn pushed(append: &AppendReceipt) -> Value {
    let mut shown = json!({
        "queue": append.queue,
        "partition": append.partition,
        "status": if append.stored == 0 { "duplicate" } else { "queued" },
        "baseOffset": append.base_offset,
    });
    if let Some(at) = append.created_at {
        shown["createdAt"] = Value::from(time(at));
    }
    shown
}

/// The failure envelope: nothing of the cycle was committed (streams E7-E9).
fn failed(ids: Ids, error: &str) -> Value {
    json!({
        "success": false,
        "query_id": ids.query_text(),
        "partition_id": ids.partition_text(),
        "queueName": null,
        "state_ops_applied": 0,
        "push_results": [],
        "ack_result": null,
        "error": error,
    })
}
