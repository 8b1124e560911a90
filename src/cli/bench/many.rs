//! Many cycles a call, straight in PostgreSQL, with the writes of the hosted flights fold.
//!
//! The folds are done beforehand; a call commits one batch of each of its partitions and claims
//! their next batches, as the broker's committer does for hosted folds.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde_json::Value;
use uuid::Uuid;

use super::fold::{Flight, Shard};
use super::load::Feed;
use super::measure::Driver;
use super::stage::{Stage, Target};
use crate::db::Db;
use crate::db::append::Append;
use crate::db::claim::{Claim, LaneOutcome};
use crate::db::cycle::{PackedCycle, Upsert};
use crate::db::group::Start;
use crate::log::{Frame, Segment, SegmentBuilder};
use crate::types::cycle::{Hosted, NextClaim, Settlement, Timers};
use crate::types::id::{PartitionId, Pid, QueryNo, TenantId, TxnHash};
use crate::types::limits::{HOSTED_BATCH_BYTES_MAX, HOSTED_LEASE_MS};

/// Messages a cycle.
pub(super) const BATCH: usize = 100;
/// Cycles of one call at most: beyond eight the gain is small and the call gets longer.
const TOGETHER: usize = 8;

/// What one batch writes.
struct Planned {
    upserts: Vec<Upsert>,
    deletes: Vec<String>,
    sink: Option<Segment>,
    watermark: Option<i64>,
    messages: i64,
}

/// The writes of every batch of every lane.
pub(super) struct Plan {
    lanes: BTreeMap<String, Arc<Vec<Planned>>>,
    /// Messages that all lanes emit, batch by batch.
    pub(super) emits: u64,
    /// Batches of all lanes.
    pub(super) cycles: u64,
}

impl Plan {
    /// Folds the first `n` departures on each lane.
    pub(super) fn new(feed: &Feed, target: &Target, n: usize) -> anyhow::Result<Self> {
        let mut plan = Self { lanes: BTreeMap::new(), emits: 0, cycles: 0 };
        for (lane, _) in &target.lanes {
            let mut shard = Shard::default();
            let mut batches = Vec::new();
            for batch in feed.lane(lane, n).chunks(BATCH) {
                let folded = shard.fold(batch.iter().map(|(_, payload)| Flight::read(payload)))?;
                plan.emits += folded.emits.len() as u64;
                plan.cycles += 1;
                let mut upserts: Vec<Upsert> = folded
                    .upserts
                    .into_iter()
                    .map(|(key, value, due_ms)| Upsert {
                        window_end: value["windowEnd"].as_f64(),
                        key,
                        value: value.to_string(),
                        due_ms,
                    })
                    .collect();
                upserts.sort_by(|a, b| a.key.cmp(&b.key));
                batches.push(Planned {
                    upserts,
                    deletes: folded.deletes,
                    sink: segment(folded.emits),
                    watermark: folded.watermark,
                    messages: i64::try_from(batch.len())?,
                });
            }
            plan.lanes.insert(lane.clone(), Arc::new(batches));
        }
        Ok(plan)
    }
}

fn segment(emits: Vec<Value>) -> Option<Segment> {
    let mut builder = SegmentBuilder::default();
    for payload in emits {
        let transaction_id = Uuid::now_v7().to_string();
        let hash = TxnHash::of(&transaction_id);
        let frame = Frame {
            message_id: Uuid::now_v7(),
            transaction_id: Some(transaction_id),
            trace_id: None,
            producer_sub: None,
            payload: payload.to_string(),
        };
        builder.push(&frame, hash);
    }
    (!builder.is_empty()).then(|| builder.finish())
}

/// A partition under lease.
struct Lane {
    id: PartitionId,
    sink: Pid,
    planned: Arc<Vec<Planned>>,
    at: usize,
    version: i64,
    lease: Uuid,
}

/// A caller of `cycles_v1` with up to [`TOGETHER`] partitions of its own.
pub(super) struct Many {
    db: Db,
    query: QueryNo,
    group: String,
    lanes: Vec<Lane>,
}

/// Callers that share the partitions of `source`, each under its first lease.
pub(super) async fn callers(
    stage: &Stage,
    name: &str,
    source: &Target,
    sink: &Target,
    plan: &Plan,
) -> anyhow::Result<Vec<Many>> {
    let db = stage.direct();
    let (name, _) = stage.outside_query(name, &source.queue.name).await?;
    let query = db.query_list(TenantId::DEFAULT, Some(&name)).await?.pop();
    let query = query.context("the query is gone")?;
    let group = db.group_register(source.queue.no, &query.group(), Start::All, false).await?;
    let group = group.context("the queue is gone")?.no;
    let of = source.lanes.len().div_ceil(TOGETHER);
    let mut callers = Vec::new();
    for caller in 0..of {
        let mut lanes = Vec::new();
        for (name, id) in source.share(caller, of) {
            let lease = Uuid::now_v7();
            let claim = Claim {
                group,
                pids: vec![id.pid().0],
                batch: i32::try_from(BATCH)?,
                lanes: 1,
                bytes: HOSTED_BATCH_BYTES_MAX,
                lease,
                lease_ms: Some(HOSTED_LEASE_MS),
                auto_ack: false,
                conflate: false,
            };
            let lane = db.claim(&claim).await?.pop().context("a claim answers")?;
            ensure!(matches!(lane.outcome, LaneOutcome::Claimed(_)), "a lane was not claimed");
            let planned = Arc::clone(plan.lanes.get(&name).context("every lane is planned")?);
            let sink = sink.queue.partition_id(&name).pid();
            lanes.push(Lane { id, sink, planned, at: 0, version: 0, lease });
        }
        lanes.sort_by_key(|lane| lane.id.pid());
        let group = query.group();
        callers.push(Many { db: db.clone(), query: query.no, group, lanes });
    }
    Ok(callers)
}

impl Driver for Many {
    async fn step(&mut self) -> anyhow::Result<u64> {
        if self.lanes.is_empty() {
            return Ok(0);
        }
        let mut leases = Vec::with_capacity(self.lanes.len());
        let mut cycles = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            let next = Uuid::now_v7();
            leases.push(next);
            cycles.push(self.cycle(lane, next)?);
        }
        let rows = self.db.cycles(&cycles).await?;
        let mut kept = Vec::with_capacity(self.lanes.len());
        for ((mut lane, row), lease) in self.lanes.drain(..).zip(&rows).zip(leases) {
            ensure!(row.released == Some(true), "a lease was not released");
            (lane.at, lane.version, lane.lease) = (lane.at + 1, row.version, lease);
            if matches!(&row.next, Some(l) if matches!(l.outcome, LaneOutcome::Claimed(_))) {
                kept.push(lane);
            }
        }
        self.lanes = kept;
        Ok(rows.len() as u64)
    }
}

impl Many {
    fn cycle(&self, lane: &Lane, next: Uuid) -> anyhow::Result<PackedCycle> {
        let planned = lane.planned.get(lane.at).context("more batches than planned")?;
        let append = planned.sink.clone().map(|mut segment| {
            segment.first_id = Uuid::now_v7();
            segment.last_id = if segment.n == 1 { segment.first_id } else { Uuid::now_v7() };
            Append { pid: lane.sink, segment, known: None, window_ms: 0 }
        });
        Ok(PackedCycle {
            partition: lane.id,
            query: self.query,
            group: self.group.clone(),
            settlement: Settlement::Completed { lease: lane.lease, count: planned.messages },
            upserts: planned.upserts.clone(),
            deletes: planned.deletes.clone(),
            appends: append.into_iter().collect(),
            dead_letters: Vec::new(),
            hosted: Some(Hosted {
                expected_version: lane.version,
                timers: Timers::Watermark,
                idle_ms: 2_000,
                watermark_ms: planned.watermark,
                backoff_ms: 0,
                messages: planned.messages,
                tallies: BTreeMap::new(),
                next: Some(NextClaim {
                    lease: next,
                    batch: i32::try_from(BATCH)?,
                    bytes: HOSTED_BATCH_BYTES_MAX,
                    lease_ms: HOSTED_LEASE_MS,
                }),
            }),
        })
    }
}
