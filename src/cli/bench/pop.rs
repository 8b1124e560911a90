//! Consumption: claims and settles straight in PostgreSQL, and the same over pop and ack.

use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::measure::{Driver, Pace, Pair, duel};
use super::stage::{CONNECTIONS, Stage, Target};
use super::wire::Wire;
use crate::db::Db;
use crate::db::claim::{Batch, Claim, LaneOutcome};
use crate::db::group::Start;
use crate::db::settle::{AckGroup, AckStatus};
use crate::log::Segment;
use crate::types::id::{GroupNo, PartitionId, TxnHash};

/// Messages of one claim.
pub(super) const BATCH: usize = 100;

/// The part of a popped message that settling it needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Popped<'a> {
    pub(super) transaction_id: &'a str,
    pub(super) partition_id: &'a str,
    pub(super) lease_id: &'a str,
    pub(super) partition: &'a str,
}

/// The part of a pop's answer that settling it needs.
#[derive(Deserialize)]
pub(super) struct PopAnswer<'a> {
    #[serde(borrow)]
    pub(super) messages: Vec<Popped<'a>>,
}

/// Claims the next batch of the first of `lanes` that has one, starting behind `at`.
pub(super) async fn claim_any(
    db: &Db,
    group: GroupNo,
    lanes: &[(String, PartitionId)],
    at: &mut usize,
    batch: i32,
) -> anyhow::Result<Option<(usize, Uuid, Batch)>> {
    for _ in 0..lanes.len() {
        *at = (*at + 1) % lanes.len();
        let lease = Uuid::now_v7();
        let claim = Claim {
            group,
            pids: vec![lanes[*at].1.pid().0],
            batch,
            lanes: 1,
            bytes: i64::MAX,
            lease,
            lease_ms: None,
            auto_ack: false,
            conflate: false,
        };
        let lane = db.claim(&claim).await?.pop().context("a claim answers for its candidate")?;
        if let LaneOutcome::Claimed(batch) = lane.outcome {
            return Ok(Some((*at, lease, batch)));
        }
    }
    Ok(None)
}

/// A caller of `log_claim_v1` and `log_settle_v1`. It knows the hashes of what it claims, so it
/// need not unpack segments.
struct Direct {
    db: Db,
    group: GroupNo,
    name: String,
    lanes: Vec<(String, PartitionId)>,
    segments: Arc<Vec<Segment>>,
    at: usize,
}

impl Driver for Direct {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let batch = i32::try_from(BATCH)?;
        let claimed = claim_any(&self.db, self.group, &self.lanes, &mut self.at, batch).await?;
        let Some((lane, lease, batch)) = claimed else { return Ok(0) };
        let stored = usize::try_from(batch.from_offset)? / BATCH;
        let segment = &self.segments[stored % self.segments.len()];
        let (hashes, _) = segment.hashes.as_chunks::<16>();
        let group = AckGroup {
            partition: self.lanes[lane].1,
            group: self.name.clone(),
            lease: Some(lease),
            items: hashes.iter().map(|h| (TxnHash(*h), AckStatus::Completed)).collect(),
            dead: None,
        };
        let outcome = self.db.settle(&[group]).await?.pop().context("one group, one outcome")?;
        ensure!(outcome.released && outcome.items.iter().all(|i| i.success), "not settled");
        Ok(BATCH as u64)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ack<'a> {
    transaction_id: &'a str,
    partition_id: &'a str,
    lease_id: &'a str,
    status: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Acks<'a> {
    acknowledgments: Vec<Ack<'a>>,
    consumer_group: &'a str,
}

/// One HTTP connection that pops and acks every message.
struct Http {
    wire: Wire,
    path: String,
    group: String,
}

impl Driver for Http {
    async fn step(&mut self) -> anyhow::Result<u64> {
        let answer = self.wire.call("GET", &self.path, b"").await?;
        if answer.status == 204 {
            return Ok(0);
        }
        let popped: PopAnswer<'_> = serde_json::from_slice(answer.expect(200)?)?;
        let acknowledgments = popped.messages.iter().map(|m| Ack {
            transaction_id: m.transaction_id,
            partition_id: m.partition_id,
            lease_id: m.lease_id,
            status: "completed",
        });
        let acks = Acks { acknowledgments: acknowledgments.collect(), consumer_group: &self.group };
        let n = acks.acknowledgments.len();
        let body = serde_json::to_vec(&acks)?;
        let answer = self.wire.call("POST", "/api/v1/ack/batch", &body).await?;
        let refused = answer.expect(200)?.windows(15).any(|w| w == b"\"success\":false");
        ensure!(!refused, "an ack was refused");
        Ok(n as u64)
    }
}

/// Path of a waiting pop from any one partition.
pub(super) fn pop_path(queue: &str, group: &str, batch: usize) -> String {
    format!(
        "/api/v1/pop/queue/{queue}?batch={batch}&partitions=1&wait=true&timeout=1000\
         &consumerGroup={group}&subscriptionMode=all"
    )
}

/// Messages a second that are claimed and settled; `segments` are what `target` was filled with.
pub(super) async fn compare(
    stage: &Stage,
    pace: Pace,
    target: &Target,
    segments: &Arc<Vec<Segment>>,
) -> anyhow::Result<Pair> {
    let (of, name) = (stage.pool_size(), stage.name("settles"));
    let group = stage.direct().group_register(target.queue.no, &name, Start::All, false).await?;
    let group = group.context("the queue is gone")?.no;
    let direct = (0..of.min(target.lanes.len())).map(|driver| Direct {
        db: stage.direct().clone(),
        group,
        name: name.clone(),
        lanes: target.share(driver, of),
        segments: Arc::clone(segments),
        at: 0,
    });
    let group = stage.name("pops");
    let mut http = Vec::new();
    for _ in 0..CONNECTIONS {
        http.push(Http {
            wire: stage.wire().await?,
            path: pop_path(&target.queue.name, &group, BATCH),
            group: group.clone(),
        });
    }
    duel(pace, direct.collect(), http).await
}
