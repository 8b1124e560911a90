//! Single cycles: a claim and one cycle a call straight in PostgreSQL, and the same over HTTP.
//!
//! A cycle settles a batch of ten messages, writes ten state rows and appends one message. The
//! claim belongs to the measurement on both sides, because every cycle needs a lease.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::{Context, ensure};

use super::load::Feed;
use super::measure::{Driver, Pace, Pair, duel};
use super::pop::{PopAnswer, claim_any, pop_path};
use super::stage::{CONNECTIONS, LANES, Stage, Target};
use super::wire::Wire;
use crate::db::Db;
use crate::db::append::Append;
use crate::db::cycle::{PackedCycle, Upsert};
use crate::db::group::Start;
use crate::log::Segment;
use crate::types::cycle::Settlement;
use crate::types::id::{GroupNo, PartitionId, QueryNo, TenantId};

/// Messages that a cycle settles.
pub(super) const BATCH: usize = 10;
/// State rows that a cycle writes.
const OPS: usize = 10;

fn key(op: usize) -> String {
    format!("key-{op:02}")
}

/// A caller of `log_claim_v1` and `cycles_v1`, one cycle a call.
struct Direct {
    db: Db,
    query: QueryNo,
    group: GroupNo,
    name: String,
    lanes: Vec<(String, PartitionId)>,
    sink: Target,
    payloads: Arc<Vec<String>>,
    segments: Arc<Vec<Segment>>,
    at: usize,
    turn: usize,
}

impl Driver for Direct {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let n = i32::try_from(BATCH)?;
        let claimed = claim_any(&self.db, self.group, &self.lanes, &mut self.at, n).await?;
        let Some((lane, lease, batch)) = claimed else { return Ok(0) };
        self.turn += OPS;
        let (name, partition) = &self.lanes[lane];
        let upserts = (0..OPS).map(|op| Upsert {
            key: key(op),
            value: self.payloads[(self.turn + op) % self.payloads.len()].clone(),
            window_end: None,
            due_ms: None,
        });
        let mut segment = self.segments[self.turn % self.segments.len()].clone();
        segment.first_id = uuid::Uuid::now_v7();
        segment.last_id = segment.first_id;
        let pid = self.sink.queue.partition_id(name).pid();
        let cycle = PackedCycle {
            partition: *partition,
            query: self.query,
            group: self.name.clone(),
            settlement: Settlement::Completed {
                lease,
                count: batch.batch_end - batch.from_offset + 1,
            },
            upserts: upserts.collect(),
            deletes: Vec::new(),
            appends: vec![Append { pid, segment, known: None, window_ms: 0 }],
            dead_letters: Vec::new(),
            hosted: None,
        };
        let row = self.db.cycles(&[cycle]).await?.pop().context("one cycle, one receipt")?;
        ensure!(row.released == Some(true), "the lease was not released");
        Ok(1)
    }
}

/// One HTTP connection that pops and sends a cycle.
struct Http {
    wire: Wire,
    path: String,
    query_id: String,
    group: String,
    sink: String,
    payloads: Arc<Vec<String>>,
    turn: usize,
}

impl Driver for Http {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let answer = self.wire.call("GET", &self.path, b"").await?;
        if answer.status == 204 {
            return Ok(0);
        }
        let popped: PopAnswer<'_> = serde_json::from_slice(answer.expect(200)?)?;
        let last = popped.messages.last().context("a pop without messages")?;
        self.turn += OPS;
        let payload = |i: usize| self.payloads[(self.turn + i) % self.payloads.len()].as_str();
        let mut body = String::with_capacity(4096);
        write!(
            body,
            r#"{{"query_id":"{}","partition_id":"{}","consumer_group":"{}","state_ops":["#,
            self.query_id, last.partition_id, self.group
        )?;
        for op in 0..OPS {
            let comma = if op > 0 { "," } else { "" };
            let (key, value) = (key(op), payload(op));
            write!(body, r#"{comma}{{"type":"upsert","key":"{key}","value":{value}}}"#)?;
        }
        write!(
            body,
            r#"],"push_items":[{{"queue":"{}","partition":"{}","payload":{}}}],"ack":{{"#,
            self.sink,
            last.partition,
            payload(OPS)
        )?;
        write!(
            body,
            r#""transactionId":"{}","leaseId":"{}","status":"completed","count":{}}},"#,
            last.transaction_id,
            last.lease_id,
            popped.messages.len()
        )?;
        body.push_str(r#""release_lease":true}"#);
        let answer = self.wire.call("POST", "/streams/v1/cycle", body.as_bytes()).await?;
        committed(answer.expect(200)?)?;
        Ok(1)
    }
}

/// Whether the answer of a cycle says that it was committed.
fn committed(answer: &[u8]) -> anyhow::Result<()> {
    #[derive(serde::Deserialize)]
    struct Receipt {
        success: bool,
        error: Option<String>,
    }
    let receipt: Receipt = serde_json::from_slice(answer)?;
    ensure!(receipt.success, "a cycle was refused: {}", receipt.error.unwrap_or_default());
    Ok(())
}

/// Pairs of claim and cycle a second; `target` holds segments of [`BATCH`] messages.
pub(super) async fn compare(
    stage: &Stage,
    feed: &Feed,
    pace: Pace,
    target: &Target,
) -> anyhow::Result<Pair> {
    let (db, source) = (stage.direct(), &target.queue.name);
    let (name, _) = stage.outside_query("single", source).await?;
    let query = db.query_list(TenantId::DEFAULT, Some(&name)).await?.pop();
    let query = query.context("the query is gone")?;
    let group = db.group_register(target.queue.no, &query.group(), Start::All, false).await?;
    let group = group.context("the queue is gone")?.no;
    let sink = stage.queue("single.direct", LANES).await?;
    let (of, segments) = (stage.pool_size(), feed.segments(1));
    let direct = (0..of.min(LANES)).map(|driver| Direct {
        db: db.clone(),
        query: query.no,
        group,
        name: query.group(),
        lanes: target.share(driver, of),
        sink: sink.clone(),
        payloads: Arc::clone(&feed.payloads),
        segments: Arc::clone(&segments),
        at: 0,
        turn: driver,
    });
    let (name, query_id) = stage.outside_query("pairs", source).await?;
    let group = format!("streams.{name}");
    let sink = stage.queue("single.http", LANES).await?;
    let mut http = Vec::new();
    for turn in 0..CONNECTIONS {
        http.push(Http {
            wire: stage.wire().await?,
            path: pop_path(source, &group, BATCH),
            query_id: query_id.clone(),
            group: group.clone(),
            sink: sink.queue.name.clone(),
            payloads: Arc::clone(&feed.payloads),
            turn,
        });
    }
    duel(pace, direct.collect(), http).await
}
