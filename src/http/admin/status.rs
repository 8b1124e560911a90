//! The status page: queues, one queue, and the figures of a window (control-plane 10).

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::messages::scope;
use super::resources::{no_queue, stats, sum};
use super::time;
use crate::db::message::Scope;
use crate::db::resource::{Counts, QueueFigures};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Params, Tenant, check_name};
use crate::telemetry::Metrics;

/// Window that a request without one means.
const WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// Longest window: as long as figures are kept.
const WINDOW_MAX: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Reasons of dead letters that are shown.
const REASONS: i64 = 10;
/// Figures of a point that nobody records; they are 0.
const UNKNOWN: [&str; 18] = [
    "processed",
    "popMessages",
    "processedPerSecond",
    "popPerSecond",
    "avgLagMs",
    "maxLagMs",
    "avgEventLoopLagMs",
    "maxEventLoopLagMs",
    "minFreeSlots",
    "dbErrors",
    "ackFailed",
    "dlqCount",
    "queenCpuUserPct",
    "queenCpuSysPct",
    "queenRssMb",
    "dbPoolActive",
    "dbPoolIdle",
    "dbPoolSize",
];

/// `GET /api/v1/status/queues`: newest first, by pages.
pub(in crate::http) async fn queues(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    let page = params.page(100);
    let scope = scope(&params)?;
    let db = app.broker.db();
    let queues = db.queue_figures(tenant, &scope, Some(page.limit), page.offset).await?;
    let shown = queues.iter().map(|q| {
        let mut messages = stats(&q.counts);
        messages.as_object_mut().map(|m| m.remove("failed"));
        json!({
            "id": q.id,
            "name": q.name,
            "namespace": q.namespace,
            "task": q.task,
            "createdAt": time(q.created_at),
            "partitions": q.partitions,
            "messages": messages,
        })
    });
    Ok(Json(json!({
        "queues": shown.collect::<Vec<_>>(),
        "pagination": {"limit": page.limit, "offset": page.offset},
    })))
}

/// `GET /api/v1/status/queues/{queue}`: options, partitions and cursors.
pub(in crate::http) async fn queue(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(queue): Names<String>,
) -> Result<Json<Value>, ApiError> {
    check_name("queue", &queue)?;
    let found = app.broker.queue_detail(tenant, &queue).await?.ok_or_else(no_queue)?;
    let (q, options) = (&found.queue, &found.queue.options.echo);
    let partitions = found.partitions.iter().map(|p| {
        let counts = stats(&p.counts);
        json!({
            "id": p.id.0,
            "name": p.name,
            "createdAt": time(p.created_at),
            "messages": counts,
            "stats": counts,
            "cursor": {"totalConsumed": p.total_consumed, "batchesConsumed": 0},
            "lastActivity": p.last_consumed_at.max(p.newest_at).map(time),
            "oldestMessage": p.oldest_at.map(time),
            "newestMessage": p.newest_at.map(time),
        })
    });
    let totals = stats(&sum(found.partitions.iter().map(|p| &p.counts)));
    Ok(Json(json!({
        "queue": {
            "id": q.id,
            "name": q.name,
            "namespace": q.namespace,
            "task": q.task,
            "priority": options["priority"],
            "createdAt": time(q.created_at),
            "config": {
                "leaseTime": options["leaseTime"],
                "retryLimit": options["retryLimit"],
                "retryDelay": options["retryDelay"],
                "ttl": options["ttl"],
                "maxQueueSize": options["maxSize"],
                "deadLetterQueue": options["deadLetterQueue"],
            },
        },
        "partitions": partitions.collect::<Vec<_>>(),
        "totals": {"messages": totals},
    })))
}

/// Width of a point by the length of the window (control-plane 10).
fn bucket_minutes(window: SignedDuration) -> i64 {
    match window.as_mins() {
        ..=60 => 1,
        61..=360 => 5,
        361..=1_440 => 15,
        1_441..=10_080 => 60,
        _ => 360,
    }
}

/// Where the points of a window begin, ascending.
fn points(from: Timestamp, to: Timestamp, minutes: i64) -> Vec<Timestamp> {
    let step = minutes * 60;
    let first = from.as_second().div_euclid(step) * step;
    let begins = (first..to.as_second()).step_by(usize::try_from(step).unwrap_or(60));
    begins.filter_map(|second| Timestamp::from_second(second).ok()).collect()
}

/// The window that parameters name: its ends, and the end as given.
async fn window(app: &AppState, params: &Params) -> Result<(Timestamp, Timestamp), ApiError> {
    let now = Timestamp::from_millisecond(app.broker.db().clock_ms().await?);
    let now = now.unwrap_or(Timestamp::MAX);
    let to = params.instant("to")?.unwrap_or(now).min(now);
    let before = |length| to.checked_sub(length).unwrap_or(Timestamp::MIN);
    let from = params.instant("from")?.unwrap_or_else(|| before(WINDOW));
    Ok((from.clamp(before(WINDOW_MAX), to), to))
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(n: i64, minutes: i64) -> f64 {
    (n as f64 / (minutes * 60) as f64 * 100.0).round() / 100.0
}

/// Messages committed by point, newest first.
fn throughput(points: &[Timestamp], ingested: &[i64], minutes: i64) -> Vec<Value> {
    let point = |(at, n): (&Timestamp, &i64)| {
        let mut shown: Map<String, Value> =
            UNKNOWN.iter().map(|key| ((*key).to_owned(), json!(0))).collect();
        shown.insert("timestamp".to_owned(), json!(time(*at)));
        shown.insert("ingested".to_owned(), json!(n));
        shown.insert("ingestedPerSecond".to_owned(), json!(per_second(*n, minutes)));
        Value::Object(shown)
    };
    points.iter().zip(ingested).rev().map(point).collect()
}

/// Requests of this process, and messages a request.
fn requests(metrics: &Metrics) -> (Value, Value) {
    let (mut requests, mut efficiency) = (Map::new(), Map::new());
    for op in ["push", "pop", "ack"] {
        let n = metrics.requests.with_label_values(&[op]).get();
        let messages = metrics.messages.with_label_values(&[op]).get();
        let share = (messages * 100).checked_div(n).unwrap_or(0);
        requests.insert(op.to_owned(), json!(n));
        #[expect(clippy::cast_precision_loss, reason = "two decimals")]
        efficiency.insert(op.to_owned(), json!(share as f64 / 100.0));
    }
    (Value::Object(requests), Value::Object(efficiency))
}

/// Queues that hold or held something.
fn used(queues: &[QueueFigures]) -> Vec<Value> {
    let used = queues.iter().filter(|q| q.counts.total > 0 || q.total_consumed > 0);
    let shown = used.map(|q| {
        json!({
            "id": q.id,
            "name": q.name,
            "namespace": q.namespace,
            "task": q.task,
            "partitions": q.partitions,
            "totalConsumed": q.total_consumed,
        })
    });
    shown.collect()
}

/// `GET /api/v1/status`: what happened in a window, and how things stand.
pub(in crate::http) async fn status(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    let scope = Scope { partition: None, ..scope(&params)? };
    let (from, to) = window(&app, &params).await?;
    let minutes = bucket_minutes(to.duration_since(from));
    let (broker, db) = (&app.broker, app.broker.db());
    let mut instants = points(from, to, minutes);
    let shown = instants.len();
    // The last count reaches to the present, beyond the window.
    instants.push(to);
    let mut ingested = broker.ingested(tenant, &scope, &instants).await?;
    ingested.truncate(shown);
    let throughput = throughput(&instants[..shown], &ingested, minutes);
    let queues = db.queue_figures(tenant, &scope, None, 0).await?;
    let counts: Counts = sum(queues.iter().map(|q| &q.counts));
    let leases = db.lease_figures(tenant, &scope).await?;
    let dead = db.dead_figures(tenant, &scope, REASONS).await?;
    let metrics = broker.metrics();
    let (requests, efficiency) = requests(metrics);
    let reasons = dead.reasons.iter().map(|(reason, n)| json!({"error": reason, "count": n}));
    let mut messages = stats(&counts);
    messages["failed"] = json!(0);
    messages["requests"] = requests;
    messages["batchEfficiency"] = efficiency;
    Ok(Json(json!({
        "timeRange": {"from": time(from), "to": time(to)},
        "bucketMinutes": minutes,
        "pointCount": throughput.len(),
        "throughput": throughput,
        "queues": used(&queues),
        "messages": messages,
        "leases": {
            "active": leases.active,
            "partitionsWithLeases": leases.partitions,
            "totalBatchSize": leases.batches,
            "totalAcked": leases.acked,
        },
        "deadLetterQueue": {
            "totalMessages": dead.total,
            "affectedPartitions": dead.partitions,
            "topErrors": reasons.collect::<Vec<_>>(),
        },
        "workers": [],
        "errors": {
            "dbErrors": metrics.db_errors.get(),
            "ackFailed": metrics.ack_failed.get(),
            "dlqMessages": metrics.dead_letters.get(),
        },
        // Nothing of this is remembered.
        "statsAge": 0,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 10
    #[test]
    fn points_grow_with_the_window_and_cover_it() {
        let widths = [60, 61, 360, 361, 1_440, 1_441, 10_080, 10_081]
            .map(|minutes| bucket_minutes(SignedDuration::from_mins(minutes)));
        assert_eq!(widths, [1, 5, 5, 15, 15, 60, 60, 360]);
        let at = |second| Timestamp::from_second(second).expect("in range");
        assert_eq!(points(at(119), at(240), 1), [at(60), at(120), at(180)]);
        assert_eq!(points(at(119), at(241), 1).len(), 4);
        assert!(points(at(60), at(60), 1).is_empty());
        let shown = throughput(&[at(0), at(60)], &[6, 90], 1);
        assert_eq!(
            (&shown[0]["ingested"], &shown[0]["ingestedPerSecond"]),
            (&json!(90), &json!(1.5))
        );
        assert_eq!(shown[1]["timestamp"], "1970-01-01T00:00:00.000Z");
        assert_eq!(shown[1].as_object().map(Map::len), Some(21));
    }
}
