//! `/streams/v1/queries`: what runs, how it goes, and its life cycle.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::broker::QueryError;
use crate::db::hosted::{HostedRow, QueryFigures, RunState};
use crate::db::query::Query;
use crate::hosted::FlushError;
use crate::http::AppState;
use crate::http::answer::time;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Names, Tenant, check_name};
use crate::http::shape;
use crate::types::id::TenantId;

/// A query with its figures. Fields of the run are null for outside workers.
#[derive(Debug, Serialize)]
pub(in crate::http) struct Shown {
    success: bool,
    name: String,
    query_id: String,
    source_queue: String,
    sink_queue: Option<String>,
    config_hash: String,
    hosted: bool,
    state: &'static str,
    state_reason: Option<String>,
    module: Option<String>,
    params: Option<Box<RawValue>>,
    start: Option<Value>,
    batch: Option<i32>,
    on_poison: Option<&'static str>,
    sinks: Vec<String>,
    lag_messages: i64,
    cycles: i64,
    messages: i64,
    emits: i64,
    dead_letters: i64,
    failures: i64,
    tallies: Value,
    state_rows: i64,
    state_bytes: i64,
    partitions: i64,
    watermark: Option<String>,
    last_error: Option<Value>,
    last_error_at: Option<String>,
    created_at: String,
    updated_at: String,
}

impl Shown {
    fn new(query: Query, hosted: Option<HostedRow>, figures: QueryFigures) -> Self {
        let watermark = figures.watermark_ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let mut shown = Self {
            success: true,
            name: query.name,
            query_id: query.id.to_string(),
            source_queue: query.source_queue,
            sink_queue: query.sink_queue,
            config_hash: query.config_hash,
            hosted: false,
            state: "external",
            state_reason: None,
            module: None,
            params: None,
            start: None,
            batch: None,
            on_poison: None,
            sinks: Vec::new(),
            lag_messages: figures.lag_messages,
            cycles: figures.cycles,
            messages: figures.messages,
            emits: figures.emits,
            dead_letters: 0,
            failures: 0,
            tallies: figures.tallies,
            state_rows: figures.state_rows,
            state_bytes: figures.state_bytes,
            partitions: figures.partitions,
            watermark: watermark.map(time),
            last_error: None,
            last_error_at: None,
            created_at: time(query.created_at),
            updated_at: time(query.updated_at),
        };
        if let Some(row) = hosted {
            shown.host(row);
        }
        shown
    }

    fn host(&mut self, row: HostedRow) {
        self.hosted = true;
        self.state = row.state.as_str();
        self.state_reason = row.state_reason;
        self.module = Some(hex::encode(row.module_hash));
        self.params = RawValue::from_string(row.params).ok();
        self.start = Some(row.start);
        self.batch = Some(row.batch);
        self.on_poison = Some(if row.pause_on_poison { "pause" } else { "dead_letter" });
        self.sinks = row.sinks;
        self.dead_letters = row.dead_letters;
        self.failures = row.failures;
        self.last_error = row.last_error;
        self.last_error_at = row.last_error_at.map(time);
    }
}

#[derive(Serialize)]
pub(in crate::http) struct List {
    queries: Vec<Shown>,
}

/// Every query of the tenant.
pub(in crate::http) async fn list(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
) -> Result<Json<List>, ApiError> {
    Ok(Json(List { queries: read(&app, tenant, None).await? }))
}

/// One query.
pub(in crate::http) async fn show(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Shown>, ApiError> {
    check_name("name", &name)?;
    let found = read(&app, tenant, Some(&name)).await?.pop();
    found.map(Json).ok_or_else(|| failed(QueryError::NotFound(name)))
}

async fn read(
    app: &AppState,
    tenant: TenantId,
    name: Option<&str>,
) -> Result<Vec<Shown>, ApiError> {
    let db = app.broker.db();
    let queries = db.query_list(tenant, name).await?;
    let hosted = db.hosted_list(Some(tenant), name).await?;
    let mut hosted: HashMap<_, _> = hosted.into_iter().map(|row| (row.query.no, row)).collect();
    let mut shown = Vec::with_capacity(queries.len());
    for query in queries {
        let figures = db.query_figures(&query).await?;
        let row = hosted.remove(&query.no);
        shown.push(Shown::new(query, row, figures));
    }
    Ok(shown)
}

/// Deletes a query with its state and cursors.
pub(in crate::http) async fn delete(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Value>, ApiError> {
    check_name("name", &name)?;
    app.broker.query_delete(tenant, &name).await.map_err(failed)?;
    Ok(Json(json!({"success": true, "name": name})))
}

/// Stops a hosted query at its exact place.
pub(in crate::http) async fn pause(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Value>, ApiError> {
    enter(&app, tenant, &name, RunState::Paused, Some("paused by an operator")).await
}

/// Lets a paused or halted query go on.
pub(in crate::http) async fn resume(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
) -> Result<Json<Value>, ApiError> {
    enter(&app, tenant, &name, RunState::Running, None).await
}

async fn enter(
    app: &AppState,
    tenant: TenantId,
    name: &str,
    state: RunState,
    reason: Option<&str>,
) -> Result<Json<Value>, ApiError> {
    check_name("name", name)?;
    app.broker.query_state(tenant, name, state, reason).await.map_err(failed)?;
    Ok(Json(json!({"success": true, "name": name, "state": state.as_str()})))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FlushRequest {
    watermark: Option<Value>,
}

/// Says that input up to a time has ended: windows before it close.
pub(in crate::http) async fn flush(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    check_name("name", &name)?;
    let request: FlushRequest = shape::object(&body)?;
    let to = watermark(request.watermark.as_ref())?;
    let flushed = app.hosted.flush(tenant, &name, to).await.map_err(unflushed)?;
    Ok(Json(json!({
        "success": true,
        "name": name,
        "partitions": flushed.partitions,
        "cycles": flushed.cycles,
        "emits": flushed.emits,
    })))
}

/// Unix ms of a watermark; `None` for now.
fn watermark(given: Option<&Value>) -> Result<Option<i64>, ApiError> {
    let ms = match given {
        None => return Ok(None),
        Some(Value::String(text)) if text == "now" => return Ok(None),
        Some(Value::String(text)) => text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond),
        Some(Value::Number(number)) => number.as_i64(),
        Some(_) => None,
    };
    let refuse = || {
        let text = "watermark must be \"now\", an ISO-8601 instant or Unix milliseconds";
        ApiError::bad(text)
    };
    ms.map(Some).ok_or_else(refuse)
}

fn failed(error: QueryError) -> ApiError {
    match error {
        QueryError::Store(cause) => cause.into(),
        QueryError::NotFound(_) => ApiError::not_found(error.to_string()),
        QueryError::NotHosted(_) => ApiError::bad(error.to_string()),
    }
}

fn unflushed(error: FlushError) -> ApiError {
    match error {
        FlushError::Store(cause) => cause.into(),
        FlushError::NotFound(_) => ApiError::not_found(error.to_string()),
        FlushError::NotHosted(_) | FlushError::NotRunning(_) => ApiError::bad(error.to_string()),
        FlushError::Failed(_) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::types::cycle::Timers;
    use crate::types::id::QueryNo;

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

    fn figures() -> QueryFigures {
        QueryFigures {
            cycles: 1,
            messages: 2,
            emits: 3,
            tallies: json!({"late": 4}),
            state_rows: 5,
            state_bytes: 6,
            partitions: 7,
            watermark_ms: Some(1000),
            lag_messages: 8,
        }
    }

    #[test]
    fn outside_queries_are_external_and_hosted_ones_show_their_run() {
        let shown = |row| serde_json::to_value(Shown::new(query(), row, figures())).expect("plain");
        let outside = shown(None);
        assert_eq!((&outside["state"], &outside["hosted"]), (&json!("external"), &json!(false)));
        assert_eq!((&outside["module"], &outside["sinks"]), (&Value::Null, &json!([])));
        assert_eq!(outside["watermark"], "1970-01-01T00:00:01.000000Z");
        let hosted = shown(Some(HostedRow {
            query: query(),
            module_hash: [0xab; 32],
            params: r#"{"b":1.50}"#.to_owned(),
            start: json!("earliest"),
            batch: 9,
            pause_on_poison: true,
            sinks: vec!["out".to_owned()],
            timers: Timers::Clock,
            idle_ms: 0,
            state: RunState::Halted,
            state_reason: Some("r".to_owned()),
            last_error: Some(json!({"code": "trap"})),
            last_error_at: Some(Timestamp::UNIX_EPOCH),
            failures: 2,
            dead_letters: 1,
        }));
        assert_eq!((&hosted["state"], &hosted["on_poison"]), (&json!("halted"), &json!("pause")));
        assert_eq!(hosted["params"], json!({"b": 1.5}));
        assert_eq!((&hosted["failures"], &hosted["dead_letters"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn a_watermark_is_a_word_an_instant_or_a_number() {
        let read = |value: Value| watermark(Some(&value));
        assert_eq!(watermark(None).expect("now"), None);
        assert_eq!(read(json!("now")).expect("now"), None);
        assert_eq!(read(json!(1500)).expect("ms"), Some(1500));
        assert_eq!(read(json!("1970-01-01T00:00:02Z")).expect("instant"), Some(2000));
        for bad in [json!("soon"), json!(1.5), json!([]), json!(true)] {
            assert!(read(bad).is_err());
        }
    }
}
