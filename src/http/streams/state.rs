//! `POST /streams/v1/state/get`: rows of one query and one partition.

use axum::extract::State;
use serde::Deserialize;
use serde_json::{Number, Value};
use uuid::Uuid;

use crate::broker::StateError;
use crate::db::state::{StateFilter, StateRow};
use crate::http::AppState;
use crate::http::answer::Json;
use crate::http::error::ApiError;
use crate::http::extract::{Body, Tenant, own_partition};
use crate::http::shape::{self, List, Maybe, Text};
use crate::types::id::{PartitionId, TenantId};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request<'a> {
    #[serde(borrow)]
    query_id: Text<'a>,
    #[serde(borrow)]
    partition_id: Text<'a>,
    keys: Maybe<List<Value>>,
    #[serde(borrow)]
    key_prefix: Text<'a>,
    ripe_at_or_before: Maybe<Number>,
}

#[derive(Debug)]
struct Asked {
    query: Uuid,
    partition: PartitionId,
    filter: StateFilter,
}

/// Reads state rows, the only way to see a window before it closes.
pub(in crate::http) async fn get(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    Body(body): Body,
) -> Result<Json, ApiError> {
    gate(&app, tenant, &body).await?;
    let no_rows = || Value::Array(Vec::new());
    let asked =
        read(&body).map_err(|error| error.with("success", false).with("rows", no_rows()))?;
    let rows = app.broker.state_get(tenant, asked.query, asked.partition, &asked.filter).await;
    match rows {
        Ok(rows) => Ok(answer(&rows)),
        Err(StateError::Store(cause)) => Err(ApiError::store_failed(cause)),
    }
}

/// With tenancy on, the partition must be the caller's own. The gate is skipped where none is
/// named, so that the missing field is what the caller hears of (streams G16-G18).
async fn gate(app: &AppState, tenant: TenantId, body: &[u8]) -> Result<(), ApiError> {
    if !app.tenancy {
        return Ok(());
    }
    let request: Request<'_> = shape::object(body)?;
    match request.partition_id.filled() {
        Some(text) => {
            let partition = Uuid::try_parse(&text).ok().map(PartitionId);
            own_partition(app, tenant, partition).await
        }
        None => Ok(()),
    }
}

fn read(body: &[u8]) -> Result<Asked, ApiError> {
    let request: Request<'_> = shape::object(body)?;
    // Both must be there before either is parsed (streams G14, G16).
    let required = |field: &str| ApiError::bad(format!("{field} is required"));
    let query = request.query_id.filled().ok_or_else(|| required("query_id"))?;
    let partition = request.partition_id.filled().ok_or_else(|| required("partition_id"))?;
    let uuid = |field: &str, text: &str| {
        Uuid::try_parse(text).map_err(|_malformed| ApiError::bad(format!("{field} is no uuid")))
    };
    Ok(Asked {
        query: uuid("query_id", &query)?,
        partition: PartitionId(uuid("partition_id", &partition)?),
        filter: StateFilter {
            keys: request.keys.ok().and_then(keys),
            prefix: request.key_prefix.filled().map(std::borrow::Cow::into_owned),
            ripe_at_or_before: request.ripe_at_or_before.ok().and_then(|n| n.as_f64()),
        },
    })
}

/// No key at all is no filter (streams G3); a key that is no string is matched by its JSON text.
fn keys(List(keys): List<Value>) -> Option<Vec<String>> {
    let text = |key| match key {
        Value::String(text) => text,
        other => other.to_string(),
    };
    (!keys.is_empty()).then(|| keys.into_iter().map(text).collect())
}

fn answer(rows: &[StateRow]) -> Json {
    let bytes: usize = rows.iter().map(|row| row.key.len() + row.value.len() + 80).sum();
    let mut json = Json::with_capacity(bytes + 40);
    json.raw("{\"success\":true,\"rows\":[");
    for (i, row) in rows.iter().enumerate() {
        json.raw(if i > 0 { ",{\"key\":" } else { "{\"key\":" }).text(&row.key);
        json.raw(",\"value\":").raw(&row.value);
        json.raw(",\"updated_at\":").time(row.updated_at).raw("}");
    }
    json.raw("]}");
    json
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    const IDS: &str = r#""query_id":"00000000-0000-0000-0000-000000000007",
        "partition_id":"00000000-0000-0000-0000-000000000008""#;

    fn filter(rest: &str) -> StateFilter {
        read(format!("{{{IDS}{rest}}}").as_bytes()).expect("good").filter
    }

    /// streams G3, G5, G6, G8
    #[test]
    fn what_is_no_filter_is_left_out() {
        for rest in ["", r#","keys":null"#, r#","keys":[]"#, r#","keys":"a""#, r#","keys":{}"#] {
            assert_eq!(filter(rest).keys, None, "{rest}");
        }
        let keys = filter(r#","keys":["a\u001fb",5]"#).keys;
        assert_eq!(keys, Some(vec!["a\u{1f}b".to_owned(), "5".to_owned()]));
        assert_eq!(filter(r#","key_prefix":"""#).prefix, None);
        assert_eq!(filter(r#","key_prefix":"a%_\\""#).prefix.as_deref(), Some("a%_\\"));
        for rest in [r#","ripe_at_or_before":"5""#, r#","ripe_at_or_before":null"#] {
            assert_eq!(filter(rest).ripe_at_or_before, None, "{rest}");
        }
        assert_eq!(filter(r#","ripe_at_or_before":1.5e3"#).ripe_at_or_before, Some(1500.0));
        assert_eq!(filter(r#","ripe_at_or_before":-1"#).ripe_at_or_before, Some(-1.0));
    }

    /// streams G14, G16
    #[test]
    fn missing_and_malformed_ids_are_refused() {
        for body in [
            "".to_owned(),
            r#"{"query_id":null,"partition_id":"x"}"#.to_owned(),
            r#"{"query_id":"","partition_id":"x"}"#.to_owned(),
            r#"{"query_id":"00000000-0000-0000-0000-000000000007"}"#.to_owned(),
            r#"{"query_id":"zz","partition_id":"zz"}"#.to_owned(),
            "[]".to_owned(),
        ] {
            assert!(read(body.as_bytes()).is_err(), "{body}");
        }
    }

    /// streams G10, G12, G25, G26
    #[test]
    fn rows_hold_their_values_as_stored() {
        let row = |key: &str, value: &str| StateRow {
            key: key.to_owned(),
            value: value.to_owned(),
            updated_at: Timestamp::UNIX_EPOCH,
        };
        let rows = [row("a\u{1f}\"", "{\"windowEnd\": 10000}"), row("b", "null")];
        assert_eq!(
            answer(&rows).parsed(),
            json!({"success": true, "rows": [
                {"key": "a\u{1f}\"", "value": {"windowEnd": 10000},
                 "updated_at": "1970-01-01T00:00:00.000000Z"},
                {"key": "b", "value": null, "updated_at": "1970-01-01T00:00:00.000000Z"},
            ]})
        );
        assert_eq!(answer(&[]).parsed(), json!({"success": true, "rows": []}));
    }
}
