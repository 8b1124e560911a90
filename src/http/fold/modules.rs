//! `/streams/v1/modules`: upload, list, read, delete.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::db::module::ModuleRow;
use crate::fold::ModuleHash;
use crate::hosted::{ModuleError, Uploaded};
use crate::http::AppState;
use crate::http::answer::time;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Tenant, read_body};
use crate::http::streams::queries::fold_failed;

/// Takes the raw bytes of a module: 201 for a new one, 200 for one that was there.
pub(in crate::http) async fn upload(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    request: Request,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let limit = app.hosted.engine().limits().upload_bytes;
    let bytes = read_body(request, limit).await?;
    let Uploaded { row, fresh } = app.hosted.upload(tenant, bytes.into()).await.map_err(refused)?;
    let status = if fresh { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(shown(&row))))
}

/// Every module of the tenant, newest first.
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<Value>, ApiError> {
    let rows = app.broker.db().module_list(tenant, None).await?;
    let modules: Vec<Value> = rows.iter().map(with_queries).collect();
    Ok(Json(json!({"modules": modules})))
}

/// One module.
pub(in crate::http) async fn show(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Value>, ApiError> {
    let hash = parsed(&name)?;
    let row = app.broker.db().module_list(tenant, Some(hash.as_bytes())).await?.pop();
    row.map(|row| Json(with_queries(&row))).ok_or_else(|| unknown(&name))
}

/// Deletes a module that no query runs.
pub(in crate::http) async fn delete(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Value>, ApiError> {
    let hash = parsed(&name)?;
    let db = app.broker.db();
    if db.module_delete(tenant, hash.as_bytes()).await? {
        return Ok(Json(json!({"success": true, "module": hash})));
    }
    let row = db.module_list(tenant, Some(hash.as_bytes())).await?.pop();
    Err(row.map_or_else(|| unknown(&name), |row| in_use(&row)))
}

/// What is no hash cannot be the name of a module either.
fn parsed(name: &str) -> Result<ModuleHash, ApiError> {
    name.parse().map_err(|_malformed| unknown(name))
}

fn unknown(name: &str) -> ApiError {
    ApiError::not_found(format!("module {name:?} not found"))
}

fn in_use(row: &ModuleRow) -> ApiError {
    let text = format!("the module is run by: {}", row.queries.join(", "));
    ApiError::bad(text).with("success", false).with("queries", row.queries.clone())
}

fn refused(error: ModuleError) -> ApiError {
    match error {
        ModuleError::Refused(cause) => {
            let status = if cause.is_unreadable() {
                StatusCode::BAD_REQUEST
            } else {
                StatusCode::UNPROCESSABLE_ENTITY
            };
            ApiError::new(status, cause.to_string()).code(cause.code())
        }
        ModuleError::Fold(cause) => fold_failed(cause, StatusCode::UNPROCESSABLE_ENTITY),
        ModuleError::Store(cause) => cause.into(),
    }
}

fn shown(row: &ModuleRow) -> Value {
    json!({
        "module": hex::encode(&row.hash),
        "name": row.name,
        "version": row.version,
        "size_bytes": row.size_bytes,
        "manifest": row.manifest,
        "created_at": time(row.created_at),
    })
}

fn with_queries(row: &ModuleRow) -> Value {
    let mut shown = shown(row);
    shown["queries"] = row.queries.clone().into();
    shown
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use jiff::Timestamp;

    use super::*;
    use crate::fold::UploadError;

    #[test]
    fn modules_are_named_by_their_hash() {
        let row = ModuleRow {
            hash: vec![0xab; 32],
            name: "n".to_owned(),
            version: "1".to_owned(),
            manifest: json!({"name": "n"}),
            size_bytes: 7,
            created_at: Timestamp::UNIX_EPOCH,
            queries: vec!["q".to_owned()],
        };
        let body = with_queries(&row);
        assert_eq!(body["module"], "ab".repeat(32));
        assert_eq!(body["queries"], json!(["q"]));
        assert!(shown(&row).get("queries").is_none());
        assert_eq!(in_use(&row).into_response().status(), StatusCode::BAD_REQUEST);
        assert!(parsed("zz").is_err() && parsed(&"AB".repeat(32)).is_err());
    }

    #[test]
    fn unreadable_bytes_and_refused_modules_differ_in_status() {
        let status = |error| refused(ModuleError::Refused(error)).into_response().status();
        assert_eq!(status(UploadError::Empty), StatusCode::BAD_REQUEST);
        let missing = UploadError::MissingExport { name: "start".to_owned() };
        assert_eq!(status(missing), StatusCode::UNPROCESSABLE_ENTITY);
    }
}
