//! A worker outside the broker, with the calls of the official SDK runners (streams K1-K16).
//!
//! It pops up to 200 messages of up to 4 partitions; for each partition in turn it reads the whole
//! shard, folds, and sends one cycle. It parses less than an SDK does, which is in its favour.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::cycle::committed;
use super::fold::{Folded, Shard};
use super::measure::Driver;
use super::stage::Stage;
use super::wire::Wire;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    id: String,
    transaction_id: String,
    partition_id: String,
    partition: String,
    lease_id: String,
    created_at: Timestamp,
    data: Box<RawValue>,
}

#[derive(Deserialize)]
struct PopAnswer {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
struct Row<'a> {
    key: String,
    #[serde(borrow)]
    value: &'a RawValue,
}

#[derive(Deserialize)]
struct Rows<'a> {
    success: bool,
    #[serde(borrow)]
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct StateOp<'a> {
    r#type: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct PushItem<'a> {
    queue: &'a str,
    partition: &'a str,
    payload: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ack<'a> {
    transaction_id: &'a str,
    lease_id: &'a str,
    status: &'static str,
    count: usize,
}

#[derive(Serialize)]
struct Cycle<'a> {
    query_id: &'a str,
    partition_id: &'a str,
    consumer_group: &'a str,
    state_ops: Vec<StateOp<'a>>,
    push_items: Vec<PushItem<'a>>,
    ack: Ack<'a>,
    release_lease: bool,
}

/// One worker.
pub(super) struct Worker {
    wire: Wire,
    path: String,
    query_id: String,
    group: String,
    sink: String,
}

/// `n` workers that share a query.
pub(super) async fn team(
    stage: &Stage,
    name: &str,
    source: &str,
    sink: &str,
    n: usize,
) -> anyhow::Result<Vec<Worker>> {
    let (name, query_id) = stage.outside_query(name, source).await?;
    let group = format!("streams.{name}");
    let path = format!(
        "/api/v1/pop/queue/{source}?batch=200&partitions=4&wait=true&timeout=1000\
         &consumerGroup={group}&subscriptionMode=all"
    );
    let workers = stage.wires(n).await?.into_iter().map(|wire| Worker {
        wire,
        path: path.clone(),
        query_id: query_id.clone(),
        group: group.clone(),
        sink: sink.to_owned(),
    });
    Ok(workers.collect())
}

impl Driver for Worker {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let answer = self.wire.call("GET", &self.path, b"").await?;
        if answer.status == 204 {
            return Ok(0);
        }
        let answer: PopAnswer = serde_json::from_slice(answer.expect(200)?)?;
        let n = answer.messages.len() as u64;
        let mut partitions: BTreeMap<String, Vec<Message>> = BTreeMap::new();
        for message in answer.messages {
            partitions.entry(message.partition_id.clone()).or_default().push(message);
        }
        for (partition, mut messages) in partitions {
            messages.sort_by(|a, b| {
                let ms = |m: &Message| m.created_at.as_millisecond();
                ms(a).cmp(&ms(b)).then_with(|| a.id.cmp(&b.id))
            });
            self.cycle(&partition, &messages).await?;
        }
        Ok(n)
    }
}

impl Worker {
    async fn cycle(&mut self, partition: &str, messages: &[Message]) -> anyhow::Result<()> {
        let ask = serde_json::json!({
            "query_id": self.query_id, "partition_id": partition, "keys": [],
        });
        let ask = serde_json::to_vec(&ask)?;
        let answer = self.wire.call("POST", "/streams/v1/state/get", &ask).await?;
        let rows: Rows<'_> = serde_json::from_slice(answer.expect(200)?)?;
        ensure!(rows.success, "state could not be read");
        let mut shard = Shard::default();
        for row in rows.rows {
            shard.load(&row.key, row.value.get())?;
        }
        let folded = shard.fold(messages.iter().map(|m| m.data.get()))?;
        let body = self.body(partition, messages, &folded)?;
        let answer = self.wire.call("POST", "/streams/v1/cycle", &body).await?;
        committed(answer.expect(200)?)
    }

    fn body(
        &self,
        partition_id: &str,
        messages: &[Message],
        folded: &Folded,
    ) -> anyhow::Result<Vec<u8>> {
        let last = messages.last().context("a partition without messages")?;
        let deletes =
            folded.deletes.iter().map(|key| Ok(StateOp { r#type: "delete", key, value: None }));
        let upserts = folded.upserts.iter().map(|(key, value, _)| {
            let value = Some(serde_json::from_str(value)?);
            Ok(StateOp { r#type: "upsert", key, value })
        });
        let items = folded.emits.iter().map(|payload| {
            let payload = serde_json::from_str(payload)?;
            Ok(PushItem { queue: &self.sink, partition: &last.partition, payload })
        });
        Ok(serde_json::to_vec(&Cycle {
            query_id: &self.query_id,
            partition_id,
            consumer_group: &self.group,
            state_ops: deletes.chain(upserts).collect::<anyhow::Result<_>>()?,
            push_items: items.collect::<anyhow::Result<_>>()?,
            ack: Ack {
                transaction_id: &last.transaction_id,
                lease_id: &last.lease_id,
                status: "completed",
                count: messages.len(),
            },
            release_lease: true,
        })?)
    }
}
