//! Consumer groups (control-plane 8).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{instant, time};
use crate::broker::{SeekError, SeekTo, start_of};
use crate::db::group_admin::GroupSummary;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Names, Params, Tenant, check_name};
use crate::http::shape::{self, Maybe, Text};
use crate::types::id::{QUEUE_MODE, TenantId};

/// Age of the oldest message left above which a group counts as lagging, s.
const LAGGING_S: i64 = 300;

fn summary(g: &GroupSummary) -> Value {
    let state = if g.lag_s > LAGGING_S {
        "Lagging"
    } else if g.total_consumed > 0 {
        "Stable"
    } else {
        "Dead"
    };
    // Nobody subscribes to the queue mode.
    let subscribed = g.name != QUEUE_MODE;
    json!({
        "name": g.name,
        "queueName": g.queue,
        "topics": [g.queue],
        "members": g.cursors,
        "partitionCursors": g.cursors,
        "partitionsWithLag": g.lagging,
        "totalLag": g.lag,
        "maxTimeLag": g.lag_s,
        "state": state,
        "storage": "segments",
        "subscriptionMode": subscribed.then_some(&g.mode),
        "subscriptionTimestamp": g.start_at.map(time),
        "subscriptionCreatedAt": subscribed.then(|| time(g.created_at)),
        "conflation": g.conflation,
    })
}

/// `GET /api/v1/consumer-groups`: one row a (group, queue).
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Vec<Value>>, ApiError> {
    let groups = app.broker.db().group_list(tenant).await?;
    Ok(Json(groups.iter().map(summary).collect()))
}

#[expect(clippy::cast_precision_loss, reason = "hours, to two decimals")]
fn hours(seconds: i64) -> f64 {
    (seconds as f64 / 36.0).round() / 100.0
}

/// `GET /api/v1/consumer-groups/lagging`: worst first.
pub(in crate::http) async fn lagging(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Vec<Value>>, ApiError> {
    let more_than_s = params.count("minLagSeconds", 3_600);
    let rows = app.broker.db().group_lagging(tenant, more_than_s).await?;
    let shown = rows.iter().map(|row| {
        json!({
            "consumer_group": row.group,
            "queue_name": row.queue,
            "partition_name": row.partition,
            "partition_id": row.partition_id.0,
            "worker_id": null,
            "offset_lag": row.lag,
            "time_lag_seconds": row.lag_s,
            "lag_hours": hours(row.lag_s),
            "oldest_unconsumed_at": time(row.oldest_at),
            "last_consumed_at": row.last_consumed_at.map(time),
        })
    });
    Ok(Json(shown.collect()))
}

/// `GET /api/v1/consumer-groups/{group}`: by queue, one entry a cursor.
pub(in crate::http) async fn show(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(group): Names<String>,
) -> Result<Json<Map<String, Value>>, ApiError> {
    check_name("consumerGroup", &group)?;
    let cursors = app.broker.db().group_detail(tenant, &group).await?;
    let queues = cursors.chunk_by(|a, b| a.queue == b.queue).map(|cursors| {
        let partitions: Vec<Value> = cursors
            .iter()
            .map(|c| {
                json!({
                    "partition": c.partition,
                    "workerId": null,
                    "lastConsumedAt": c.last_consumed_at.map(time),
                    "totalConsumed": c.total_consumed,
                    "offsetLag": c.lag,
                    "timeLagSeconds": c.lag_s,
                    "leaseActive": c.leased,
                })
            })
            .collect();
        let shown = json!({"conflation": cursors[0].conflation, "partitions": partitions});
        (cursors[0].queue.clone(), shown)
    });
    Ok(Json(queues.collect()))
}

/// `DELETE /api/v1/consumer-groups/{group}`: on every queue.
pub(in crate::http) async fn delete(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(group): Names<String>,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    deleted(&app, tenant, &group, None, &params).await
}

/// The same for the group whose name is that of a static route.
pub(in crate::http) async fn delete_lagging(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    deleted(&app, tenant, "lagging", None, &params).await
}

/// `DELETE /api/v1/consumer-groups/{group}/queues/{queue}`: on one queue.
pub(in crate::http) async fn delete_on_queue(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((group, queue)): Names<(String, String)>,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    check_name("queue", &queue)?;
    deleted(&app, tenant, &group, Some(&queue), &params).await
}

async fn deleted(
    app: &AppState,
    tenant: TenantId,
    group: &str,
    queue: Option<&str>,
    params: &Params,
) -> Result<Json<Value>, ApiError> {
    check_name("consumerGroup", group)?;
    let registration = params.switch("deleteMetadata", true);
    let cursors = app.broker.group_delete(tenant, group, queue, registration).await?;
    let mut body = json!({
        "success": true,
        "consumerGroup": group,
        "deletedPartitions": cursors,
        "metadataDeleted": registration,
    });
    if let Some(queue) = queue {
        body["queueName"] = json!(queue);
    }
    Ok(Json(body))
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Subscription<'a> {
    #[serde(borrow)]
    subscription_timestamp: Text<'a>,
}

/// `POST /api/v1/consumer-groups/{group}/subscription`: moves the stored start, no cursor.
pub(in crate::http) async fn subscription(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(group): Names<String>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    check_name("consumerGroup", &group)?;
    let request: Subscription<'_> = shape::object(&body)?;
    let Some(text) = request.subscription_timestamp.filled() else {
        return Err(ApiError::bad("subscriptionTimestamp is required"));
    };
    let at = instant("subscriptionTimestamp", &text)?;
    let rows = app.broker.db().group_subscription(tenant, &group, at).await?;
    Ok(Json(json!({
        "success": true, "consumerGroup": group, "newTimestamp": text, "rowsUpdated": rows,
    })))
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeekRequest<'a> {
    to_end: Maybe<bool>,
    #[serde(borrow)]
    timestamp: Text<'a>,
}

/// Reads where a seek goes; `toEnd` wins.
fn seek_to(body: &[u8]) -> Result<(SeekTo, Option<String>), ApiError> {
    let request: SeekRequest<'_> = shape::object(body)?;
    if request.to_end == Maybe::Is(true) {
        return Ok((SeekTo::End, None));
    }
    let Some(text) = request.timestamp.filled() else {
        return Err(ApiError::bad("toEnd: true or a timestamp is required"));
    };
    Ok((SeekTo::At(instant("timestamp", &text)?), Some(text.into_owned())))
}

/// `POST /api/v1/consumer-groups/{group}/queues/{queue}/seek`: every partition of a queue.
pub(in crate::http) async fn seek(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((group, queue)): Names<(String, String)>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    check_name("consumerGroup", &group)?;
    check_name("queue", &queue)?;
    let (to, text) = seek_to(&body)?;
    let start = start_of(None, None, app.default_subscription_new);
    match app.broker.group_seek(tenant, &queue, None, &group, start, to).await {
        Ok(moved) => Ok(Json(json!({
            "success": true,
            "consumerGroup": group,
            "queueName": queue,
            "seekToEnd": to == SeekTo::End,
            "targetTimestamp": text,
            "partitionsUpdated": moved,
        }))),
        Err(SeekError::NotFound) => {
            Err(ApiError::not_found("Queue not found or has no partitions")
                .with("success", false)
                .with("consumerGroup", group)
                .with("queueName", queue)
                .with("partitionsUpdated", 0))
        }
        Err(SeekError::Store(cause)) => Err(cause.into()),
    }
}

/// `POST .../queues/{queue}/partitions/{partition}/seek`: one partition; without a body to its end.
pub(in crate::http) async fn seek_partition(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((group, queue, partition)): Names<(String, String, String)>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    check_name("consumerGroup", &group)?;
    check_name("queue", &queue)?;
    check_name("partition", &partition)?;
    // SDKs leave an empty object out, or send it.
    let request: Map<String, Value> = shape::object(&body)?;
    let (to, text) = if request.is_empty() { (SeekTo::End, None) } else { seek_to(&body)? };
    let start = start_of(None, None, app.default_subscription_new);
    match app.broker.group_seek(tenant, &queue, Some(&partition), &group, start, to).await {
        Ok(_one) => Ok(Json(json!({
            "success": true,
            "consumerGroup": group,
            "queueName": queue,
            "partitionName": partition,
            "seekToEnd": to == SeekTo::End,
            "targetTimestamp": text,
            "updated": true,
        }))),
        Err(SeekError::NotFound) => {
            Err(ApiError::new(StatusCode::NOT_FOUND, "Partition not found").with("success", false))
        }
        Err(SeekError::Store(cause)) => Err(cause.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 8
    #[test]
    fn a_seek_says_where_to() {
        let (to, text) = seek_to(br#"{"toEnd":true,"timestamp":"x"}"#).expect("good");
        assert_eq!((to, text), (SeekTo::End, None));
        let (to, text) = seek_to(br#"{"timestamp":"1970-01-01T02:00:00+02:00"}"#).expect("good");
        assert_eq!(to, SeekTo::At(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(text.as_deref(), Some("1970-01-01T02:00:00+02:00"));
        for body in [
            "",
            "{}",
            r#"{"position":"earliest"}"#,
            r#"{"toEnd":"true"}"#,
            r#"{"toEnd":false,"timestamp":""}"#,
            r#"{"timestamp":"soon"}"#,
        ] {
            assert!(seek_to(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn hours_have_two_decimals() {
        assert_eq!([hours(0), hours(36), hours(3_600), hours(5_000)], [0.0, 0.01, 1.0, 1.39]);
    }
}
