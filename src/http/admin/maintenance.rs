//! `/api/v1/system/maintenance` and `/maintenance/pop` (control-plane 11).

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::broker::Maintenance;
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::Body;
use crate::http::shape::{self, Maybe};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request {
    enabled: Maybe<bool>,
}

fn enabled(body: &[u8]) -> Result<bool, ApiError> {
    let request: Request = shape::object(body)?;
    request.enabled.ok().ok_or_else(|| ApiError::bad("enabled (boolean) is required"))
}

fn word(on: bool) -> &'static str {
    if on { "ENABLED" } else { "DISABLED" }
}

/// Both switches and the spool.
pub(in crate::http) async fn show(State(app): State<AppState>) -> Result<Json<Value>, ApiError> {
    let pending = app.broker.spooled().await?;
    Ok(Json(json!({
        "maintenanceMode": app.broker.in_maintenance(Maintenance::Push),
        "popMaintenanceMode": app.broker.in_maintenance(Maintenance::Pop),
        "bufferedMessages": pending,
        "bufferHealthy": true,
        "bufferStats": {
            "pendingCount": pending, "failedCount": 0, "dbHealthy": true,
            "failedFiles": {
                "count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0,
            },
        },
    })))
}

/// Switches push maintenance.
pub(in crate::http) async fn set(
    State(app): State<AppState>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let on = enabled(&body)?;
    app.broker.set_maintenance(Maintenance::Push, on).await?;
    Ok(Json(json!({
        "maintenanceMode": on,
        "bufferedMessages": app.broker.spooled().await?,
        "bufferHealthy": true,
        "message": format!("push maintenance {}", word(on)),
    })))
}

/// The pop switch.
pub(in crate::http) async fn show_pop(State(app): State<AppState>) -> Json<Value> {
    let on = app.broker.in_maintenance(Maintenance::Pop);
    Json(json!({"popMaintenanceMode": on, "message": format!("pop maintenance {}", word(on))}))
}

/// Switches pop maintenance.
pub(in crate::http) async fn set_pop(
    State(app): State<AppState>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let on = enabled(&body)?;
    app.broker.set_maintenance(Maintenance::Pop, on).await?;
    Ok(Json(json!({"popMaintenanceMode": on, "message": format!("pop maintenance {}", word(on))})))
}
