//! `POST /api/v1/configure` (control-plane 4).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::broker::{Configure, ConfigureError, ConfigureMode};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant, check_name};
use crate::http::shape;

/// Creates or reconfigures a queue and shows what is in force.
pub(in crate::http) async fn configure(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let configure = read(shape::object(&body)?)?;
    let queue = app.broker.configure(tenant, &configure).await.map_err(refused)?;
    Ok(Json(json!({
        "configured": true,
        "queueId": queue.id,
        "partitionId": null,
        "queue": queue.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "storage": "segments",
        "options": queue.options.echo,
    })))
}

fn read(mut body: Map<String, Value>) -> Result<Configure, ApiError> {
    let Some(Value::String(queue)) = body.remove("queue") else {
        return Err(ApiError::bad("queue is required"));
    };
    check_name("queue", &queue)?;
    let mode = match body.remove("mode") {
        None | Some(Value::Null) => ConfigureMode::default(),
        Some(Value::String(mode)) if mode == "merge" => ConfigureMode::Merge,
        Some(Value::String(mode)) if mode == "replace" => ConfigureMode::Replace,
        Some(other) => {
            return Err(ApiError::bad(format!("mode must be merge or replace, not {other}")));
        }
    };
    let options = match body.remove("options") {
        Some(Value::Object(mut options)) => {
            for label in ["namespace", "task"] {
                let given =
                    body.remove(label).filter(|v| v.as_str().is_some_and(|v| !v.is_empty()));
                if let Some(given) = given
                    && !options.contains_key(label)
                {
                    options.insert(label.to_owned(), given);
                }
            }
            options
        }
        // Without an options object the other keys are the options; a null label is an absent one.
        _ => {
            body.retain(|key, value| {
                !(value.is_null() && matches!(key.as_str(), "namespace" | "task"))
            });
            body
        }
    };
    for label in ["namespace", "task"] {
        if let Some(Value::String(text)) = options.get(label) {
            check_name(label, text)?;
        }
    }
    Ok(Configure { queue, options, mode })
}

fn refused(error: ConfigureError) -> ApiError {
    match error {
        ConfigureError::Store(cause) => cause.into(),
        ConfigureError::Invalid { option, reason } => {
            ApiError::bad(format!("{option} {reason}")).with("invalid", option)
        }
        ConfigureError::Gone => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the queue was deleted meanwhile; a retry is safe",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: Value) -> Result<Configure, ApiError> {
        read(body.as_object().cloned().expect("an object"))
    }

    /// control-plane 4
    #[test]
    fn options_stand_in_their_object_or_at_the_top() {
        let c = parsed(json!({"queue": "q", "namespace": "n", "task": "",
            "options": {"leaseTime": 5}, "ttl": 1}))
        .expect("good");
        assert_eq!(Value::Object(c.options), json!({"leaseTime": 5, "namespace": "n"}));
        let c = parsed(json!({"queue": "", "namespace": "n",
            "options": {"namespace": "inner"}}))
        .expect("good");
        assert_eq!(Value::Object(c.options), json!({"namespace": "inner"}));
        let c = parsed(json!({"queue": "q", "namespace": null, "task": "t", "options": 5,
            "leaseTime": 7, "mode": null}))
        .expect("good");
        assert_eq!(Value::Object(c.options), json!({"task": "t", "leaseTime": 7}));
        assert_eq!(c.mode, ConfigureMode::Replace);
    }

    /// control-plane 4
    #[test]
    fn a_missing_queue_and_an_unknown_mode_are_refused() {
        assert!(parsed(json!({})).is_err());
        assert!(parsed(json!({"queue": 5})).is_err());
        for mode in [json!("Merge"), json!(""), json!(true)] {
            assert!(parsed(json!({"queue": "q", "mode": mode})).is_err());
        }
        let merge = parsed(json!({"queue": "q", "mode": "merge"})).expect("good");
        assert_eq!(merge.mode, ConfigureMode::Merge);
        assert!(parsed(json!({"queue": "q\u{0}"})).is_err());
    }
}
