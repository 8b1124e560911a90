//! `DELETE /api/v1/resources/queues/{queue}` (control-plane 5).

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Tenant, check_name};
use crate::types::id::TenantId;

/// Deletes a queue with all its data; 200 also where there was none.
pub(in crate::http) async fn delete(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(queue): Names<String>,
) -> Result<Json<Value>, ApiError> {
    check_name("queue", &queue)?;
    deleted(&app, tenant, &queue).await
}

/// The same for the empty name, which configure accepts and no path segment can hold.
pub(in crate::http) async fn delete_unnamed(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    deleted(&app, tenant, "").await
}

async fn deleted(app: &AppState, tenant: TenantId, queue: &str) -> Result<Json<Value>, ApiError> {
    Ok(Json(if app.broker.queue_delete(tenant, queue).await? {
        json!({"deleted": true, "queue": queue, "existed": true})
    } else {
        let message = "there is no such queue";
        json!({"deleted": false, "queue": queue, "existed": false, "message": message})
    }))
}
