//! A worker outside the broker, with the calls of the official SDK runners (streams K1-K16).
//!
//! It pops up to 200 messages of up to 4 partitions; for each partition in turn it reads the whole
//! shard, folds, and sends one cycle. It does so with the means of the official Rust SDK: an HTTP
//! library, messages and rows as JSON values.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fold::{Flight, Folded, Shard};
use super::measure::Driver;
use super::stage::Stage;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    id: String,
    transaction_id: String,
    partition_id: String,
    partition: String,
    lease_id: String,
    consumer_group: String,
    created_at: String,
    data: Value,
}

impl Message {
    fn created_ms(&self) -> i64 {
        self.created_at.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond)
    }
}

#[derive(Deserialize)]
struct PopAnswer {
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct StateAsk<'a> {
    query_id: &'a str,
    partition_id: &'a str,
    keys: [&'a str; 0],
}

#[derive(Deserialize)]
struct Row {
    key: String,
    value: Value,
}

#[derive(Deserialize)]
struct Rows {
    success: bool,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct StateOp<'a> {
    r#type: &'static str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
}

#[derive(Serialize)]
struct PushItem<'a> {
    queue: &'a str,
    partition: &'a str,
    payload: &'a Value,
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

#[derive(Deserialize)]
struct Receipt {
    success: bool,
    error: Option<String>,
}

/// One worker, with a connection of its own.
pub(super) struct Worker {
    http: reqwest::Client,
    base: String,
    pop: String,
    query_id: String,
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
    let base = stage.server().url();
    let pop = format!(
        "{base}/api/v1/pop/queue/{source}?batch=200&partitions=4&wait=true&timeout=1000\
         &consumerGroup=streams.{name}&subscriptionMode=all"
    );
    let worker = |_| {
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build()?;
        let (base, pop) = (base.clone(), pop.clone());
        Ok(Worker { http, base, pop, query_id: query_id.clone(), sink: sink.to_owned() })
    };
    (0..n).map(worker).collect()
}

impl Driver for Worker {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let response = self.http.get(&self.pop).send().await?.error_for_status()?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(0);
        }
        let answer: PopAnswer = response.json().await?;
        let n = answer.messages.len() as u64;
        let mut partitions: BTreeMap<String, Vec<Message>> = BTreeMap::new();
        for message in answer.messages {
            partitions.entry(message.partition_id.clone()).or_default().push(message);
        }
        for (partition, mut messages) in partitions {
            messages
                .sort_by(|a, b| a.created_ms().cmp(&b.created_ms()).then_with(|| a.id.cmp(&b.id)));
            self.cycle(&partition, &messages).await?;
        }
        Ok(n)
    }
}

impl Worker {
    async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<A> {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        Ok(request.send().await?.error_for_status()?.json().await?)
    }

    async fn cycle(&self, partition: &str, messages: &[Message]) -> anyhow::Result<()> {
        let ask = StateAsk { query_id: &self.query_id, partition_id: partition, keys: [] };
        let rows: Rows = self.post("/streams/v1/state/get", &ask).await?;
        ensure!(rows.success, "state could not be read");
        let mut shard = Shard::default();
        for row in &rows.rows {
            shard.load(&row.key, &row.value)?;
        }
        let folded = shard.fold(messages.iter().map(|m| Flight::of(&m.data)))?;
        let body = self.body(partition, messages, &folded)?;
        let receipt: Receipt = self.post("/streams/v1/cycle", &body).await?;
        let cause = receipt.error.unwrap_or_default();
        ensure!(receipt.success, "a cycle was refused: {cause}");
        Ok(())
    }

    fn body<'b>(
        &'b self,
        partition_id: &'b str,
        messages: &'b [Message],
        folded: &'b Folded,
    ) -> anyhow::Result<Cycle<'b>> {
        let last = messages.last().context("a partition without messages")?;
        let upserts = folded.upserts.iter().map(|(key, value, _)| StateOp {
            r#type: "upsert",
            key,
            value: Some(value),
        });
        let deletes =
            folded.deletes.iter().map(|key| StateOp { r#type: "delete", key, value: None });
        let items = folded.emits.iter().map(|payload| PushItem {
            queue: &self.sink,
            partition: &last.partition,
            payload,
        });
        Ok(Cycle {
            query_id: &self.query_id,
            partition_id,
            consumer_group: &last.consumer_group,
            state_ops: deletes.chain(upserts).collect(),
            push_items: items.collect(),
            ack: Ack {
                transaction_id: &last.transaction_id,
                lease_id: &last.lease_id,
                status: "completed",
                count: messages.len(),
            },
            release_lease: true,
        })
    }
}
