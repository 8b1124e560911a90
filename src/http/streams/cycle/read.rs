//! A cycle request as the wire has it, turned into the one value that the broker commits.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Number;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::http::error::ApiError;
use crate::http::shape::{self, List, Maybe, Object, Text};
use crate::types::cycle::{Cycle, Settlement, SinkAppend, StateOp};
use crate::types::id::{DEFAULT_PARTITION, PartitionId, QUEUE_MODE, TenantId};
use crate::types::json::check_payload;
use crate::types::limits::{NAME_BYTES_MAX, TRANSACTION_ID_BYTES_MAX};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Request<'a> {
    #[serde(borrow)]
    query_id: Text<'a>,
    #[serde(borrow)]
    partition_id: Text<'a>,
    #[serde(borrow)]
    consumer_group: Text<'a>,
    #[serde(borrow)]
    state_ops: Maybe<List<Maybe<Object<Op<'a>>>>>,
    #[serde(borrow)]
    push_items: Maybe<List<Maybe<Object<Item<'a>>>>>,
    #[serde(borrow)]
    ack: Maybe<Object<Ack<'a>>>,
    release_lease: Maybe<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Op<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    key: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    value: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Item<'a> {
    #[serde(borrow)]
    queue: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "shape::verbatim")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    message_id: Text<'a>,
    #[serde(borrow)]
    transaction_id: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ack<'a> {
    #[serde(borrow)]
    transaction_id: Text<'a>,
    #[serde(borrow)]
    lease_id: Text<'a>,
    #[serde(borrow)]
    status: Text<'a>,
    count: Maybe<Number>,
}

/// The ids that every answer repeats; `None` for one that is no uuid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    pub(super) query: Option<Uuid>,
    pub(super) partition: Option<Uuid>,
}

impl Ids {
    pub(super) fn query_text(&self) -> String {
        self.query.map(|id| id.to_string()).unwrap_or_default()
    }

    pub(super) fn partition_text(&self) -> String {
        self.partition.map(|id| id.to_string()).unwrap_or_default()
    }
}

/// A request whose ids are there.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ids: Ids,
    /// The cycle, or why the element is refused.
    pub(super) cycle: Result<Cycle, String>,
}

/// Reads a request.
///
/// # Errors
/// 400 for what is no object or has no ids (streams C7, Y2); all else is for the element to say.
pub(super) fn read(body: &[u8], tenant: TenantId) -> Result<Asked, ApiError> {
    let mut request: Request<'_> = shape::object(body)?;
    let required = |field: &str, text: &mut Text<'_>| match std::mem::take(text).filled() {
        Some(text) => Ok(Uuid::try_parse(&text).ok()),
        None => Err(ApiError::bad(format!("{field} is required")).with("success", false)),
    };
    let ids = Ids {
        query: required("query_id", &mut request.query_id)?,
        partition: required("partition_id", &mut request.partition_id)?,
    };
    Ok(Asked { ids, cycle: cycle_of(ids, request, tenant) })
}

fn cycle_of(ids: Ids, request: Request<'_>, tenant: TenantId) -> Result<Cycle, String> {
    let partition = ids.partition.ok_or("partition_id is no uuid")?;
    let query_id = ids.query.ok_or("query_id is no uuid")?;
    let group = request.consumer_group.filled().unwrap_or(Cow::Borrowed(QUEUE_MODE));
    check("consumer_group", &group, NAME_BYTES_MAX)?;
    let ops = match request.state_ops {
        Maybe::Is(List(ops)) => ops,
        Maybe::Missing | Maybe::Null => Vec::new(),
        Maybe::Other => return Err("state_ops must be an array".to_owned()),
    };
    let items = request.push_items.ok().map(|List(items)| items).unwrap_or_default();
    let ack = match request.ack {
        Maybe::Is(Object(ack)) => Some(ack),
        Maybe::Missing | Maybe::Null => None,
        Maybe::Other => return Err("ack must be an object or null".to_owned()),
    };
    let release = request.release_lease.ok().unwrap_or(true);
    let mut emits = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        emits.extend(emit(index, item)?);
    }
    Ok(Cycle {
        tenant,
        query_id,
        partition_id: PartitionId(partition),
        group: group.into_owned(),
        ops: ops
            .into_iter()
            .enumerate()
            .map(|(i, op)| state_op(i, op))
            .collect::<Result<_, _>>()?,
        emits,
        settlement: ack.map_or(Settlement::None, |ack| settlement(ack, release)),
        dead_letters: Vec::new(),
        hosted: None,
    })
}

/// A typo must not commit a partial fold (streams O4, O8).
fn state_op(index: usize, op: Maybe<Object<Op<'_>>>) -> Result<StateOp, String> {
    let Object(op) = op.ok().ok_or_else(|| format!("state op {index}: it must be an object"))?;
    let upsert = match &op.kind {
        Maybe::Is(kind) if kind == "upsert" => true,
        Maybe::Is(kind) if kind == "delete" => false,
        Maybe::Is(kind) => {
            return Err(format!("state op {index}: type must be upsert or delete, not {kind:?}"));
        }
        _ => return Err(format!("state op {index}: type must be upsert or delete")),
    };
    let Maybe::Is(key) = op.key else {
        return Err(format!("state op {index}: key must be a string"));
    };
    let key = key.into_owned();
    Ok(if upsert {
        let value = op.value.map_or("{}", RawValue::get).to_owned();
        StateOp::Upsert { key, value, due_ms: None }
    } else {
        StateOp::Delete { key }
    })
}

/// `None` for an item without a queue, which is skipped (streams P1-P6).
fn emit(index: usize, item: Maybe<Object<Item<'_>>>) -> Result<Option<SinkAppend>, String> {
    let Some(Object(item)) = item.ok() else { return Ok(None) };
    let Some(queue) = item.queue.filled() else { return Ok(None) };
    let partition = item.partition.filled().unwrap_or(Cow::Borrowed(DEFAULT_PARTITION));
    let transaction_id = item.transaction_id.filled();
    let named = |field: &str, text: &str, bytes_max| {
        check(field, text, bytes_max).map_err(|e| format!("push_items[{index}].{e}"))
    };
    named("queue", &queue, NAME_BYTES_MAX)?;
    named("partition", &partition, NAME_BYTES_MAX)?;
    if let Some(id) = &transaction_id {
        named("transactionId", id, TRANSACTION_ID_BYTES_MAX)?;
    }
    let payload = item.payload.or(item.data).map_or("{}", RawValue::get);
    check_payload(payload).map_err(|e| format!("push_items[{index}].payload: {e}"))?;
    Ok(Some(SinkAppend {
        queue: queue.into_owned(),
        partition: partition.into_owned(),
        payload: payload.to_owned(),
        message_id: item.message_id.ok().and_then(|text| Uuid::try_parse(&text).ok()),
        transaction_id: transaction_id.map(Cow::into_owned),
    }))
}

fn check(field: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    shape::fault(text, bytes_max).map_or(Ok(()), |fault| Err(format!("{field} {fault}")))
}

/// What an ack does (streams A5-A9, A15, A17). A lease that is no uuid never is a live one.
fn settlement(ack: Ack<'_>, release: bool) -> Settlement {
    let lease = ack.lease_id.ok().and_then(|text| Uuid::try_parse(&text).ok()).unwrap_or_default();
    let count = ack.count.ok().and_then(|n| n.as_i64()).unwrap_or(0).max(0);
    let good = match &ack.status {
        Maybe::Is(word) => matches!(word.as_ref(), "completed" | "success" | "acked" | "ok"),
        _ => true,
    };
    match (good, release) {
        (false, _) => Settlement::Failed { lease, count },
        (true, true) => Settlement::Completed { lease, count },
        (true, false) => Settlement::Partial {
            lease,
            count,
            last_transaction_id: ack.transaction_id.filled().map(Cow::into_owned),
            release: false,
        },
    }
}
