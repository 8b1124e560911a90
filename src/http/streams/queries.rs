//! `POST /streams/v1/queries`: registration, of outside workers and of hosted folds.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

use crate::db::query::{Query, Registered, Registration};
use crate::fold::{self, Blame, ModuleHash};
use crate::hosted::{HostedRegistration, RegisterError};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant};
use crate::http::shape::{self, Maybe, Text};
use crate::types::id::TenantId;
use crate::types::json::check_payload;
use crate::types::limits::NAME_BYTES_MAX;

/// The group of a query is `streams.<name>`, and must be a name that a pop can send.
const QUERY_NAME_BYTES_MAX: usize = NAME_BYTES_MAX - "streams.".len();

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    source_queue: Text<'a>,
    #[serde(borrow)]
    sink_queue: Text<'a>,
    #[serde(borrow)]
    config_hash: Text<'a>,
    reset: Maybe<bool>,
    #[serde(borrow)]
    module: Text<'a>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    start: Option<Value>,
    batch: Maybe<Number>,
    #[serde(borrow)]
    on_poison: Text<'a>,
    paused: Maybe<bool>,
}

/// A registration of either kind.
#[derive(Debug)]
enum Asked {
    Outside(Registration),
    Hosted(HostedRegistration),
}

/// Registers or re-registers a query by name.
pub(in crate::http) async fn register(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    match read(&body, tenant)? {
        Asked::Outside(registration) => {
            let outcome = app.broker.register(&registration, None).await;
            answer(outcome.map_err(ApiError::store_failed)?, &registration.name, None)
        }
        Asked::Hosted(registration) => {
            let (name, module) = (registration.name.clone(), registration.module);
            let outcome = app.hosted.register(registration).await.map_err(refused)?;
            answer(outcome, &name, Some(module))
        }
    }
}

/// Reads and checks the request; nothing here touches the store (streams Q2).
fn read(body: &[u8], tenant: TenantId) -> Result<Asked, ApiError> {
    let request: Request<'_> = shape::object(body)?;
    let required = |field: &str, text: Text<'_>| {
        let text = text.filled().map(std::borrow::Cow::into_owned);
        text.ok_or_else(|| ApiError::bad(format!("{field} is required")))
    };
    let name = required("name", request.name)?;
    let source_queue = required("source_queue", request.source_queue)?;
    let module = match request.module.optional("module", "a string")? {
        Some(text) => Some(text.parse::<ModuleHash>().map_err(|e| {
            ApiError::bad(format!("module must be the hash of an uploaded module: {e}"))
        })?),
        None => None,
    };
    let config_hash = match module {
        None => Some(required("config_hash", request.config_hash)?),
        Some(_) => {
            let given = request.config_hash.optional("config_hash", "a string")?;
            given.filter(|hash| !hash.is_empty()).map(std::borrow::Cow::into_owned)
        }
    };
    let sink_queue = request.sink_queue.optional("sink_queue", "a string")?;
    let sink_queue = sink_queue.filter(|q| !q.is_empty()).map(std::borrow::Cow::into_owned);
    let reset = request.reset.optional("reset", "true or false")?.unwrap_or(false);
    for (field, text, bytes_max) in [
        ("name", Some(&name), QUERY_NAME_BYTES_MAX),
        ("source_queue", Some(&source_queue), NAME_BYTES_MAX),
        ("sink_queue", sink_queue.as_ref(), NAME_BYTES_MAX),
    ] {
        if let Some(fault) = text.and_then(|text| shape::fault(text, bytes_max)) {
            return Err(ApiError::bad(format!("{field} {fault}")));
        }
    }
    // The hash is opaque (Q5), but the store cannot hold U+0000.
    if config_hash.as_ref().is_some_and(|hash| hash.contains('\0')) {
        return Err(ApiError::bad("config_hash holds the character U+0000"));
    }
    Ok(match (module, config_hash) {
        (Some(module), config_hash) => Asked::Hosted(HostedRegistration {
            tenant,
            name,
            source_queue,
            sink_queue,
            config_hash,
            reset,
            module,
            params: params(request.params)?,
            start: request.start,
            batch: batch(request.batch)?,
            on_poison: request
                .on_poison
                .optional("on_poison", "a string")?
                .map(std::borrow::Cow::into_owned),
            paused: request.paused.optional("paused", "true or false")?.unwrap_or(false),
        }),
        (None, config_hash) => Asked::Outside(Registration {
            tenant,
            name,
            source_queue,
            sink_queue,
            config_hash: config_hash.unwrap_or_default(),
            reset,
            hosted: None,
        }),
    })
}

/// The parameters as they were spelled; empty where there are none.
fn params(params: Option<&RawValue>) -> Result<String, ApiError> {
    let text = params.map(RawValue::get).unwrap_or_default();
    check_payload(text).map_err(|e| ApiError::bad(format!("params: {e}")))?;
    Ok(text.to_owned())
}

fn batch(batch: Maybe<Number>) -> Result<Option<i64>, ApiError> {
    match batch.optional("batch", "an integer")? {
        None => Ok(None),
        Some(number) => match number.as_i64() {
            Some(number) => Ok(Some(number)),
            None => Err(ApiError::bad(format!("batch must be an integer, not {number}"))),
        },
    }
}

/// The outcome as the contract shows it (streams Q10-Q29).
fn answer(
    outcome: Registered,
    name: &str,
    module: Option<ModuleHash>,
) -> Result<Json<Value>, ApiError> {
    let (query, fresh, reset) = match outcome {
        Registered::Fresh(query) => (query, true, false),
        Registered::Kept(query) => (query, false, false),
        Registered::Reset(query) => (query, false, true),
        Registered::Conflict(query) => return Err(conflict(&query)),
        Registered::NotGranted => {
            return Err(denied(name, "streams are not granted to this tenant".to_owned()));
        }
        Registered::CapReached(cap) => {
            let text = format!("the cap of {cap} queries is reached (max_queries)");
            return Err(denied(name, text));
        }
    };
    let mut body = json!({
        "success": true,
        "query_id": query.id,
        "name": query.name,
        "config_hash": query.config_hash,
        "fresh": fresh,
        "reset": reset,
    });
    if let Some(module) = module {
        body["module"] = Value::from(module.to_string());
    }
    Ok(Json(body))
}

/// 409, which SDKs know by its text (streams Q22-Q25).
fn conflict(query: &Query) -> ApiError {
    let name = &query.name;
    let text = format!(
        "config_hash mismatch for query {name:?}: its state was made by another chain of \
         operators. Send \"reset\":true to delete that state, or register under a new name"
    );
    ApiError::new(StatusCode::CONFLICT, text)
        .with("success", false)
        .with("query_id", query.id.to_string())
        .with("name", name.as_str())
}

/// 403, which `reset` does not fix (streams Q11, Q18).
fn denied(name: &str, text: String) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, text)
        .with("success", false)
        .with("denied", true)
        .with("query_id", "")
        .with("name", name)
}

fn refused(error: RegisterError) -> ApiError {
    match error {
        RegisterError::Store(cause) => ApiError::store_failed(cause),
        RegisterError::Fold(cause) => fold_failed(cause, StatusCode::BAD_REQUEST),
        refused => ApiError::bad(refused.to_string()).with("success", false),
    }
}

/// A failure of a module: the author's with text and code, or this server's.
pub(in crate::http) fn fold_failed(cause: fold::Error, guest: StatusCode) -> ApiError {
    match cause.blame() {
        Blame::Guest => ApiError::new(guest, cause.to_string()).code(cause.code()),
        Blame::Host => ApiError::unavailable("the module cannot be run now, try again")
            .code(cause.code())
            .source(cause),
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;
    use crate::types::id::QueryNo;

    fn asked(body: &str) -> Result<Asked, String> {
        read(body.as_bytes(), TenantId::DEFAULT).map_err(|e| format!("{e:?}"))
    }

    fn query() -> Query {
        Query {
            no: QueryNo(1),
            id: Uuid::from_u128(3),
            tenant: TenantId::DEFAULT,
            name: "q".to_owned(),
            source_queue: "s".to_owned(),
            sink_queue: None,
            config_hash: "h".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// streams Q2, Q3
    #[test]
    fn required_fields_are_named_in_order() {
        for (body, field) in [
            ("", "name"),
            (r#"{"name":"","source_queue":5}"#, "name"),
            (r#"{"name":"n","source_queue":null,"config_hash":5}"#, "source_queue"),
            (r#"{"name":"n","source_queue":"s","config_hash":""}"#, "config_hash"),
            (r#"{"name":"n","source_queue":"s","config_hash":7}"#, "config_hash"),
        ] {
            let error = asked(body).expect_err("refused");
            assert!(error.contains(&format!("\"{field} is required\"")), "{body}: {error}");
        }
    }

    /// streams Q4, Q7
    #[test]
    fn an_empty_sink_is_none_and_reset_is_a_boolean() {
        let body =
            |rest: &str| format!(r#"{{"name":"n","source_queue":"s","config_hash":"h"{rest}}}"#);
        for rest in ["", r#","sink_queue":"""#, r#","sink_queue":null,"reset":null"#] {
            let Ok(Asked::Outside(r)) = asked(&body(rest)) else { panic!("{rest}") };
            assert_eq!((r.sink_queue, r.reset), (None, false), "{rest}");
        }
        assert!(asked(&body(r#","reset":"true""#)).is_err());
        assert!(asked(&body(r#","reset":1"#)).is_err());
        let long = "n".repeat(1017);
        let long = format!(r#"{{"name":"{long}","source_queue":"s","config_hash":"h"}}"#);
        assert!(asked(&long).is_err());
    }

    #[test]
    fn a_module_makes_a_hosted_registration() {
        let hash = "ab".repeat(32);
        let body = format!(
            r#"{{"name":"n","source_queue":"s","module":"{hash}","params":{{"b":1.0, "a":2}},
                "start":"latest","batch":5,"on_poison":"pause","paused":true}}"#
        );
        let Ok(Asked::Hosted(r)) = asked(&body) else { panic!("hosted") };
        assert_eq!(r.params, r#"{"b":1.0, "a":2}"#);
        assert_eq!((r.batch, r.paused, r.config_hash), (Some(5), true, None));
        assert_eq!(r.module.to_string(), hash);
        let bare = format!(r#"{{"name":"n","source_queue":"s","module":"{hash}","params":null}}"#);
        let Ok(Asked::Hosted(r)) = asked(&bare) else { panic!("hosted") };
        assert_eq!((r.params.as_str(), r.start, r.batch), ("", None, None));
        for bad in [r#""module":"xy""#, r#""module":5"#] {
            assert!(asked(&format!(r#"{{"name":"n","source_queue":"s",{bad}}}"#)).is_err());
        }
        for bad in [r#""batch":1.5"#, r#""batch":"5""#, r#""paused":"yes""#, r#""on_poison":1"#] {
            let body = format!(r#"{{"name":"n","source_queue":"s","module":"{hash}",{bad}}}"#);
            assert!(asked(&body).is_err(), "{bad}");
        }
    }

    /// streams Q10, Q18, Q20, Q22-Q26, Q29
    #[test]
    fn outcomes_have_the_status_and_keys_of_the_contract() {
        let Ok(Json(body)) = answer(Registered::Fresh(query()), "q", None) else { panic!("200") };
        assert_eq!(
            body,
            json!({"success": true, "query_id": Uuid::from_u128(3), "name": "q",
                "config_hash": "h", "fresh": true, "reset": false})
        );
        let status =
            |outcome| answer(outcome, "q", None).expect_err("refused").into_response().status();
        assert_eq!(status(Registered::Conflict(query())), StatusCode::CONFLICT);
        assert_eq!(status(Registered::NotGranted), StatusCode::FORBIDDEN);
        let text = format!("{:?}", conflict(&query()));
        assert!(text.contains("config_hash mismatch") && !text.contains("denied"));
        let text = format!("{:?}", answer(Registered::CapReached(4), "q", None));
        assert!(text.contains("denied") && text.contains("cap of 4"));
    }
}
