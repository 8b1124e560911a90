//! Queues, partitions, labels and totals (control-plane 5).

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::time;
use crate::db::resource::{Counts, Label, Spread};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Params, Tenant, check_name};
use crate::types::id::TenantId;

/// 404 of a queue that does not exist.
pub(super) fn no_queue() -> ApiError {
    ApiError::not_found("Queue not found")
}

/// Counts where nobody counts failures.
pub(super) fn stats(c: &Counts) -> Value {
    json!({
        "total": c.total,
        "pending": c.pending,
        "processing": c.processing,
        "completed": c.completed,
        "failed": null,
        "deadLetter": c.dead_letters,
    })
}

/// The sum of counts.
pub(super) fn sum<'c>(counts: impl Iterator<Item = &'c Counts>) -> Counts {
    counts.fold(Counts::default(), |a, b| Counts {
        total: a.total + b.total,
        pending: a.pending + b.pending,
        processing: a.processing + b.processing,
        completed: a.completed + b.completed,
        dead_letters: a.dead_letters + b.dead_letters,
    })
}

/// `GET /api/v1/resources/queues`: newest first.
pub(in crate::http) async fn queues(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    let queues = app.broker.queues(tenant).await?;
    let shown = queues.iter().map(|(q, size)| {
        json!({
            "id": q.id,
            "name": q.name,
            "namespace": q.namespace,
            "task": q.task,
            "createdAt": time(q.created_at),
            "partitions": q.partitions,
            "retainedBytes": size.bytes,
            "segments": {"segments": size.segments, "messages": q.counts.total},
            "messages": {
                "total": q.counts.total,
                "pending": q.counts.pending - q.counts.processing,
                "processing": q.counts.processing,
            },
        })
    });
    Ok(Json(json!({"queues": shown.collect::<Vec<_>>()})))
}

/// `GET /api/v1/resources/queues/{queue}`.
pub(in crate::http) async fn queue(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(queue): Names<String>,
) -> Result<Json<Value>, ApiError> {
    check_name("queue", &queue)?;
    detail(&app, tenant, &queue).await
}

/// The same for the empty name, which configure accepts and no path segment can hold.
pub(in crate::http) async fn unnamed_queue(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    detail(&app, tenant, "").await
}

async fn detail(app: &AppState, tenant: TenantId, queue: &str) -> Result<Json<Value>, ApiError> {
    let found = app.broker.queue_detail(tenant, queue).await?.ok_or_else(no_queue)?;
    let q = &found.queue;
    let mut options = q.options.echo.clone();
    options["namespace"] = json!(q.namespace);
    options["task"] = json!(q.task);
    let totals = sum(found.partitions.iter().map(|p| &p.counts));
    let partitions = found.partitions.iter().map(|p| {
        json!({
            "id": p.id.0,
            "name": p.name,
            "createdAt": time(p.created_at),
            "stats": stats(&p.counts),
            "oldestMessage": p.oldest_at.map(time),
            "newestMessage": p.newest_at.map(time),
        })
    });
    Ok(Json(json!({
        "id": q.id,
        "name": q.name,
        "namespace": q.namespace,
        "task": q.task,
        "createdAt": time(q.created_at),
        "options": options,
        "partitions": partitions.collect::<Vec<_>>(),
        "totals": stats(&totals),
        "retainedBytes": found.size.bytes,
        "segments": {"segments": found.size.segments, "messages": totals.total},
    })))
}

/// `GET /api/v1/resources/queues/{queue}/depth`: what is left, by partition.
pub(in crate::http) async fn depth(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(queue): Names<String>,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    check_name("queue", &queue)?;
    let group = params.filter("group")?;
    let found = app.broker.depth(tenant, &queue, group.as_deref()).await?;
    let found = found.ok_or_else(no_queue)?;
    let rows: Vec<(&str, i64, i64)> = found
        .rows
        .iter()
        .map(|row| (row.partition.as_str(), row.pending, row.processing.min(row.pending)))
        .collect();
    let pending: i64 = rows.iter().map(|(_, pending, _)| pending).sum();
    let processing: i64 = rows.iter().map(|(_, _, processing)| processing).sum();
    let with_pending = rows.iter().filter(|(_, pending, _)| *pending > 0).count();
    let with_ready = rows.iter().filter(|(_, pending, held)| pending > held).count();
    let ready = pending - processing;
    let partitions = rows.iter().map(|(name, pending, held)| {
        json!({
            "partition": name, "pending": pending, "processing": held, "ready": pending - held,
        })
    });
    // A conflating group takes one message of each partition, however many there are.
    let (effective_pending, effective_ready) = if found.conflation {
        (json!(with_pending), json!(with_ready))
    } else {
        (json!(pending), json!(ready))
    };
    Ok(Json(json!({
        "queue": queue,
        "group": group,
        "pending": pending,
        "processing": processing,
        "ready": ready,
        "partitionsPending": with_pending,
        "partitionsReady": with_ready,
        "conflation": found.conflation,
        "effectivePending": effective_pending,
        "effectiveReady": effective_ready,
        "partitions": partitions.collect::<Vec<_>>(),
    })))
}

fn spread(s: &Spread) -> Value {
    json!({"avg": s.avg, "median": s.median, "min": s.min, "max": s.max})
}

/// `GET /api/v1/resources/overview`: totals of the tenant.
pub(in crate::http) async fn overview(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    let overview = app.broker.overview(tenant).await?;
    let f = &overview.figures;
    Ok(Json(json!({
        "queues": f.queues,
        "partitions": f.partitions,
        "namespaces": f.namespaces,
        "tasks": f.tasks,
        "messages": {
            "total": f.counts.total,
            "pending": f.counts.pending - f.counts.processing,
            "processing": f.counts.processing,
            "completed": f.counts.completed,
            "failed": 0,
            "deadLetter": f.counts.dead_letters,
        },
        "lag": {"time": spread(&f.lag_s), "offset": spread(&f.lag)},
        "throughput": {
            "ingestedPerSecond": overview.ingested_per_s,
            "processedPerSecond": overview.processed_per_s,
        },
        "timestamp": time(overview.at),
        // Nothing of this is remembered.
        "statsAge": 0,
    })))
}

/// `GET /api/v1/resources/namespaces`.
pub(in crate::http) async fn namespaces(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"namespaces": labels(&app, tenant, Label::Namespace, "namespace").await?})))
}

/// `GET /api/v1/resources/tasks`.
pub(in crate::http) async fn tasks(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({"tasks": labels(&app, tenant, Label::Task, "task").await?})))
}

async fn labels(
    app: &AppState,
    tenant: TenantId,
    label: Label,
    key: &str,
) -> Result<Vec<Value>, ApiError> {
    let rows = app.broker.db().label_figures(tenant, label).await?;
    let shown = rows.iter().map(|row| {
        json!({
            key: row.label,
            "queues": row.queues,
            "partitions": row.partitions,
            "messages": {"total": row.total, "pending": row.pending},
        })
    });
    Ok(shown.collect())
}

/// `POST /api/v1/stats/refresh`: counts are live, so only stored sizes are read anew.
pub(in crate::http) async fn refresh(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    let overview = app.broker.stats_refresh(tenant).await?;
    let f = &overview.figures;
    Ok(Json(json!({
        "engine": "segments",
        "queuesUpdated": f.queues,
        "segPartitions": f.partitions,
        "namespaces": {"namespacesUpdated": f.namespaces},
        "tasks": {"tasksUpdated": f.tasks},
        "system": {"systemUpdated": 1},
        "refreshedAt": time(overview.at),
    })))
}
