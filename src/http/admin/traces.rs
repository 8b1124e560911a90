//! Traces (control-plane 9). Written in camel case, read in snake case.

use std::borrow::Cow;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::dlq::gone;
use super::{json_text, partition_id, time};
use crate::broker::Trace;
use crate::db::trace::{TracePlace, TraceRow};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Names, Params, Tenant, check_name};
use crate::http::shape::{self, Text};
use crate::types::id::{PartitionId, QUEUE_MODE};
use crate::types::json::check_payload;
use crate::types::limits::{NAME_BYTES_MAX, TRANSACTION_ID_BYTES_MAX};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request<'a> {
    #[serde(borrow)]
    transaction_id: Text<'a>,
    #[serde(borrow)]
    partition_id: Text<'a>,
    #[serde(borrow)]
    consumer_group: Text<'a>,
    #[serde(borrow)]
    event_type: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    data: Option<&'a RawValue>,
    trace_names: Value,
}

/// Reads a trace; `None` where the partition id is malformed, so that there is no such message.
fn read(body: &[u8]) -> Result<Option<Trace>, ApiError> {
    let request: Request<'_> = shape::object(body)?;
    let (Some(transaction_id), Some(partition)) =
        (request.transaction_id.filled(), request.partition_id.filled())
    else {
        return Err(ApiError::bad("transactionId and partitionId are required"));
    };
    let data = request.data.ok_or_else(|| ApiError::bad("data is required"))?.get();
    check_payload(data).map_err(|e| ApiError::bad(format!("data: {e}")))?;
    let group = request.consumer_group.filled();
    let event_type = request.event_type.filled();
    let trace = Trace {
        partition: PartitionId(Uuid::nil()),
        transaction_id: transaction_id.into_owned(),
        group: group.map_or_else(|| QUEUE_MODE.to_owned(), Cow::into_owned),
        event_type: event_type.map_or_else(|| "info".to_owned(), Cow::into_owned),
        data: data.to_owned(),
        names: names(request.trace_names)?,
    };
    let names = trace.names.iter().map(|name| ("traceNames", name, NAME_BYTES_MAX));
    let texts = [
        ("transactionId", &trace.transaction_id, TRANSACTION_ID_BYTES_MAX),
        ("consumerGroup", &trace.group, NAME_BYTES_MAX),
        ("eventType", &trace.event_type, NAME_BYTES_MAX),
    ];
    for (field, text, bytes_max) in texts.into_iter().chain(names) {
        if let Some(fault) = shape::fault(text, bytes_max) {
            return Err(ApiError::bad(format!("{field} {fault}")));
        }
    }
    Ok(partition_id(&partition).map(|partition| Trace { partition, ..trace }))
}

/// Names as a list, as one string, or none.
fn names(given: Value) -> Result<Vec<String>, ApiError> {
    let bad = || ApiError::bad("traceNames must be a list of strings");
    let names = match given {
        Value::Null => Vec::new(),
        Value::String(name) => vec![name],
        Value::Array(names) => {
            let text = |name| if let Value::String(name) = name { Ok(name) } else { Err(bad()) };
            names.into_iter().map(text).collect::<Result<_, _>>()?
        }
        _ => return Err(bad()),
    };
    Ok(names.into_iter().filter(|name| !name.is_empty()).collect())
}

/// `POST /api/v1/traces`: 201 with the id.
pub(in crate::http) async fn record(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let recorded = match read(&body)? {
        Some(trace) => app.broker.trace(tenant, trace).await?,
        None => None,
    };
    let id = recorded.ok_or_else(|| gone("there is no such partition"))?;
    Ok((StatusCode::CREATED, Json(json!({"success": true, "traceId": id}))).into_response())
}

#[derive(Serialize)]
struct Shown {
    id: Uuid,
    event_type: String,
    data: Box<RawValue>,
    consumer_group: String,
    worker_id: Option<String>,
    created_at: String,
    trace_names: Vec<String>,
}

#[derive(Serialize)]
struct Placed {
    #[serde(flatten)]
    shown: Shown,
    transaction_id: String,
    partition_id: Uuid,
    queue_name: String,
    partition_name: String,
    message_payload: Option<()>,
}

fn shown(row: TraceRow) -> Result<Shown, ApiError> {
    Ok(Shown {
        id: row.id,
        event_type: row.event_type,
        data: json_text(row.data)?,
        consumer_group: row.group,
        worker_id: row.worker,
        created_at: time(row.created_at),
        trace_names: row.names,
    })
}

fn placed((row, place): (TraceRow, TracePlace)) -> Result<Placed, ApiError> {
    let transaction_id = row.transaction_id.clone();
    Ok(Placed {
        shown: shown(row)?,
        transaction_id,
        partition_id: place.partition_id.0,
        queue_name: place.queue,
        partition_name: place.partition,
        message_payload: None,
    })
}

#[derive(Serialize)]
pub(in crate::http) struct OfMessage {
    traces: Vec<Shown>,
}

/// `GET /api/v1/traces/{partitionId}/{transactionId}`: oldest first.
pub(in crate::http) async fn of_message(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names((partition, transaction_id)): Names<(String, String)>,
) -> Result<Json<OfMessage>, ApiError> {
    let rows = match partition_id(&partition) {
        Some(id) => app.broker.traces(tenant, id, &transaction_id).await?,
        None => Vec::new(),
    };
    Ok(Json(OfMessage { traces: rows.into_iter().map(shown).collect::<Result<_, _>>()? }))
}

#[derive(Serialize)]
pub(in crate::http) struct ByName {
    traces: Vec<Placed>,
    total: i64,
    pagination: Value,
}

/// `GET /api/v1/traces/by-name/{name}`: oldest first.
pub(in crate::http) async fn by_name(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Names(name): Names<String>,
    params: Params,
) -> Result<Json<ByName>, ApiError> {
    check_name("name", &name)?;
    let page = params.page(100);
    let db = app.broker.db();
    let (rows, total) = db.trace_by_name(tenant, &name, page.limit, page.offset).await?;
    let traces = rows.into_iter().map(placed).collect::<Result<_, _>>()?;
    let pagination = json!({"limit": page.limit, "offset": page.offset});
    Ok(Json(ByName { traces, total, pagination }))
}

/// `GET /api/v1/traces/names`: latest first.
pub(in crate::http) async fn known_names(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Result<Json<Value>, ApiError> {
    let page = params.page(50);
    let (names, total) = app.broker.db().trace_names(tenant, page.limit, page.offset).await?;
    let names = names.iter().map(|n| {
        json!({
            "trace_name": n.name,
            "trace_count": n.traces,
            "message_count": n.messages,
            "last_seen": time(n.last_seen),
        })
    });
    Ok(Json(json!({
        "trace_names": names.collect::<Vec<_>>(),
        "total": total,
        "pagination": {"limit": page.limit, "offset": page.offset},
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 9
    #[test]
    fn names_are_a_list_a_string_or_none() {
        let read = |extra: &str| {
            let id = Uuid::nil();
            let body = format!(
                r#"{{"transactionId":"t","partitionId":"{id}","data":{{"z":1.0}}{extra}}}"#
            );
            read(body.as_bytes()).expect("good").expect("a partition id")
        };
        let plain = read("");
        assert_eq!((plain.group.as_str(), plain.event_type.as_str()), (QUEUE_MODE, "info"));
        assert_eq!(plain.data, r#"{"z":1.0}"#);
        assert!(plain.names.is_empty() && read(r#","traceNames":null"#).names.is_empty());
        assert_eq!(read(r#","traceNames":"a""#).names, ["a"]);
        assert_eq!(read(r#","traceNames":["a","","b"]"#).names, ["a", "b"]);
    }

    /// control-plane 9
    #[test]
    fn what_is_missing_is_named() {
        let refused = |body: &str| format!("{:?}", read(body.as_bytes()).expect_err("refused"));
        let required = "transactionId and partitionId are required";
        assert!(refused("{}").contains(required));
        assert!(refused(r#"{"transactionId":"","partitionId":"p","data":1}"#).contains(required));
        assert!(refused(r#"{"transactionId":"t","data":1}"#).contains(required));
        let both = r#"{"transactionId":"t","partitionId":"p""#;
        assert!(refused(&format!("{both}}}")).contains("data is required"));
        assert!(refused(&format!(r#"{both},"data":1,"traceNames":[1]}}"#)).contains("traceNames"));
        assert!(read(format!(r#"{both},"data":null}}"#).as_bytes()).expect("good").is_none());
    }
}
