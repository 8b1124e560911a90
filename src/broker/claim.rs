//! Claims of known partitions, shared by pops and hosted folds.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::lanes::Lanes;
use super::{Broker, Inner, Partition};
use crate::db::Error;
use crate::db::claim::{Batch, Claim, Lane, LaneOutcome};
use crate::db::group::{Group, Start};
use crate::log::{Frame, Seal};
use crate::types::id::{PartitionId, Pid, QueueNo, TenantId};

/// How long a lease is tried to be given back; it has lapsed by then in most cases.
const GIVE_BACK_MAX: Duration = Duration::from_secs(120);

/// One message of a claimed batch.
#[derive(Clone, Debug)]
pub struct ClaimedMessage {
    /// Offset in the partition.
    pub offset: i64,
    /// Commit time.
    pub created_at: Timestamp,
    /// The message.
    pub frame: Frame,
}

/// A leased batch, unpacked.
#[derive(Clone, Debug)]
pub struct ClaimedBatch {
    /// Partition.
    pub pid: Pid,
    /// Last offset of the batch.
    pub batch_end: i64,
    /// Next offset of the partition at the claim.
    pub next_offset: i64,
    /// How often the batch at this place was claimed, from 1.
    pub attempt: i32,
    /// Length of the lease, ms; `None` when settled at delivery.
    pub lease_ms: Option<i64>,
    /// Messages in offset order; with conflation the newest one only.
    pub messages: Vec<ClaimedMessage>,
}

/// What became of one candidate, for a hosted fold.
#[derive(Debug)]
pub enum LaneClaim {
    /// Leased.
    Claimed(ClaimedBatch),
    /// Nothing to do here now.
    Nothing,
}

impl ClaimedBatch {
    /// Unpacks the frames that belong to the batch.
    pub(super) fn unpack(
        seal: &Seal,
        pid: Pid,
        batch: &Batch,
        newest_only: bool,
    ) -> Result<Self, Error> {
        let mut messages = Vec::new();
        for segment in &batch.segments {
            let frames = crate::log::segment::decode(&segment.payload, segment.n)?;
            for (offset, mut frame) in (segment.first_offset..).zip(frames) {
                let inside = offset >= batch.from_offset && offset <= batch.batch_end;
                if inside && (!newest_only || offset == batch.batch_end) {
                    frame.payload = seal.open(frame.payload);
                    messages.push(ClaimedMessage { offset, created_at: segment.created_at, frame });
                }
            }
        }
        Ok(Self {
            pid,
            batch_end: batch.batch_end,
            next_offset: batch.next_offset,
            attempt: batch.attempt,
            lease_ms: batch.lease_ms,
            messages,
        })
    }
}

/// A claim under way. Dropped before its result was taken, it gives the lease back.
struct InFlight {
    task: Option<JoinHandle<Result<Vec<Lane>, Error>>>,
    inner: Arc<Inner>,
    lanes: Arc<Lanes>,
    lease: Uuid,
    candidates: Vec<i64>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let (inner, lanes, lease) = (Arc::clone(&self.inner), Arc::clone(&self.lanes), self.lease);
        let candidates = std::mem::take(&mut self.candidates);
        self.inner.tasks.spawn(async move {
            let pids = match task.await {
                Ok(Ok(found)) => claimed_pids(&found),
                // Its answer was lost: the claim may stand.
                _ => candidates.clone(),
            };
            give_back(&inner, lease, pids.clone()).await;
            for pid in pids {
                inner.wake.released(lanes.queue, lanes.name(), Pid(pid));
            }
            // Whoever else waits looks at them: this caller had taken them from the list.
            for pid in candidates {
                lanes.offer(Pid(pid));
            }
        });
    }
}

fn claimed_pids(lanes: &[Lane]) -> Vec<i64> {
    lanes
        .iter()
        .filter(|lane| matches!(lane.outcome, LaneOutcome::Claimed(_)))
        .map(|lane| lane.pid.0)
        .collect()
}

/// Gives leases back, again and again while the store is away: a lease whose claim got no answer
/// may stand all the same, and would keep its partition until it lapses.
async fn give_back(inner: &Arc<Inner>, lease: Uuid, pids: Vec<i64>) {
    if pids.is_empty() {
        return;
    }
    let deadline = tokio::time::Instant::now() + GIVE_BACK_MAX;
    let mut wait = Duration::from_millis(20);
    while let Err(cause) = inner.db.lease_release(lease, &pids, false).await {
        if inner.stop.is_cancelled() || tokio::time::Instant::now() >= deadline {
            tracing::warn!(%cause, %lease, "a lease could not be given back: it lapses");
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(1));
    }
}

/// A delivery under way. Dropped before it is marked as done, it gives the lease back.
pub(super) struct Delivery {
    inner: Arc<Inner>,
    lease: Uuid,
    lanes: Vec<(QueueNo, String, Pid)>,
    done: bool,
}

impl Delivery {
    pub(super) fn new(inner: &Arc<Inner>, lease: Uuid) -> Self {
        Self { inner: Arc::clone(inner), lease, lanes: Vec::new(), done: false }
    }

    pub(super) fn add(&mut self, queue: QueueNo, group: &str, pid: Pid) {
        self.lanes.push((queue, group.to_owned(), pid));
    }

    /// The answer is on its way.
    pub(super) fn done(mut self) {
        self.done = true;
    }

    /// Gives the lease back now and tells nobody: the caller claims again.
    pub(super) async fn undo(mut self) {
        let pids = self.lanes.iter().map(|lane| lane.2.0).collect();
        give_back(&self.inner, self.lease, pids).await;
        self.done = true;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.done || self.lanes.is_empty() {
            return;
        }
        let (inner, lease) = (Arc::clone(&self.inner), self.lease);
        let lanes = std::mem::take(&mut self.lanes);
        self.inner.tasks.spawn(async move {
            give_back(&inner, lease, lanes.iter().map(|l| l.2.0).collect()).await;
            for (queue, group, pid) in lanes {
                inner.released(queue, &group, pid);
            }
        });
    }
}

impl Broker {
    /// Registers a group on a queue unless it is registered.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_ensure(
        &self,
        queue: QueueNo,
        name: &str,
        start: Start,
        conflation: bool,
    ) -> Result<Option<Group>, Error> {
        self.inner.directory.group(&self.inner.db, queue, name, start, conflation).await
    }

    /// The claimable partitions of a group.
    #[must_use]
    pub fn lanes(&self, queue: QueueNo, name: &str, group: Group) -> Arc<Lanes> {
        self.inner.lanes.get(queue, name, group.no)
    }

    /// The queue of that name, if it exists.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_find(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<Option<Arc<crate::db::queue::Queue>>, Error> {
        self.inner.directory.queue(&self.inner.db, tenant, name).await
    }

    /// The partition with that wire id, if it exists.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partition_find(&self, id: PartitionId) -> Result<Option<Arc<Partition>>, Error> {
        self.inner.directory.partition(&self.inner.db, id).await
    }

    /// Claims, and tells the lanes what was learnt. Safe to drop at any moment.
    pub(super) async fn claim_lanes(
        &self,
        lanes: &Arc<Lanes>,
        claim: Claim,
    ) -> Result<Vec<Lane>, Error> {
        let (db, lease) = (self.inner.db.clone(), claim.lease);
        let candidates = claim.pids.clone();
        let auto_ack = claim.auto_ack;
        let task = self.inner.tasks.spawn(async move { db.claim(&claim).await });
        let mut flight = InFlight {
            task: Some(task),
            inner: Arc::clone(&self.inner),
            lanes: Arc::clone(lanes),
            lease,
            candidates: candidates.clone(),
        };
        let joined = flight.task.as_mut().expect("set above").await;
        flight.task = None;
        let found = match joined {
            Ok(Ok(found)) => found,
            Ok(Err(cause)) => {
                self.release_later(lanes, candidates, vec![lease], Duration::from_millis(20));
                return Err(cause);
            }
            Err(cause) => std::panic::resume_unwind(cause.into_panic()),
        };
        let mut pids = Vec::new();
        for lane in &found {
            match &lane.outcome {
                LaneOutcome::Claimed(batch) => {
                    if auto_ack {
                        if batch.batch_end + 1 < batch.next_offset {
                            lanes.offer(lane.pid);
                        }
                    } else if let Some(ms) = batch.lease_ms.and_then(|ms| u64::try_from(ms).ok()) {
                        pids.push(lane.pid.0);
                        lanes.offer_in(lane.pid, Duration::from_millis(ms + 1));
                    }
                }
                LaneOutcome::Later(wait) => {
                    let ms = wait.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(20);
                    lanes.offer_in(lane.pid, Duration::from_millis(ms.max(1)));
                }
                LaneOutcome::Empty => {}
                LaneOutcome::Gone => {
                    self.inner.directory.forget_groups();
                    lanes.rouse();
                }
            }
        }
        // What the budget did not reach is still worth a claim.
        for pid in candidates {
            if !found.iter().any(|lane| lane.pid.0 == pid) {
                lanes.offer(Pid(pid));
            }
        }
        self.inner.leases.remember(lease, pids);
        Ok(found)
    }

    /// Takes up to `most` partitions that may have work, looking into the store if it is time.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn take_lanes(&self, lanes: &Lanes, most: usize) -> Result<Vec<Pid>, Error> {
        let taken = lanes.take(most);
        if !taken.is_empty() {
            return Ok(taken);
        }
        self.inner.lanes.sweep(&self.inner.db, lanes).await?;
        Ok(lanes.take(most))
    }

    /// When lanes should be looked at although nobody was woken.
    #[must_use]
    pub fn next_look(&self, lanes: &Lanes) -> tokio::time::Instant {
        lanes.next_look(self.inner.lanes.interval())
    }

    /// Claims one partition for a hosted fold.
    ///
    /// # Errors
    /// When the store fails, or the segments cannot be read (the lease is given back then).
    pub async fn claim_one(
        &self,
        lanes: &Arc<Lanes>,
        pid: Pid,
        lease: Uuid,
        batch: i32,
        bytes: i64,
        lease_ms: i64,
    ) -> Result<LaneClaim, Error> {
        let claim = Claim {
            group: lanes.group,
            pids: vec![pid.0],
            batch,
            lanes: 1,
            bytes,
            lease,
            lease_ms: Some(lease_ms),
            auto_ack: false,
            conflate: false,
        };
        let mut found = self.claim_lanes(lanes, claim).await?;
        self.claimed(found.pop(), lease).await
    }

    /// Takes in a claim that was made inside a cycle.
    ///
    /// # Errors
    /// When the segments cannot be read; the lease is given back then.
    pub async fn claimed_in_cycle(
        &self,
        lanes: &Lanes,
        lane: Option<Lane>,
        lease: Uuid,
    ) -> Result<LaneClaim, Error> {
        match &lane {
            Some(Lane { pid, outcome: LaneOutcome::Claimed(batch) }) => {
                let ms = batch.lease_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0);
                lanes.offer_in(*pid, Duration::from_millis(ms + 1));
            }
            Some(Lane { pid, outcome: LaneOutcome::Later(wait) }) => {
                let ms = wait.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(20);
                lanes.offer_in(*pid, Duration::from_millis(ms.max(1)));
            }
            _ => {}
        }
        self.claimed(lane, lease).await
    }

    /// Unpacks the outcome of a claim.
    async fn claimed(&self, lane: Option<Lane>, lease: Uuid) -> Result<LaneClaim, Error> {
        let Some(Lane { pid, outcome: LaneOutcome::Claimed(batch) }) = lane else {
            return Ok(LaneClaim::Nothing);
        };
        match ClaimedBatch::unpack(&self.inner.seal, pid, &batch, false) {
            Ok(batch) => Ok(LaneClaim::Claimed(batch)),
            Err(cause) => {
                give_back(&self.inner, lease, vec![pid.0]).await;
                Err(cause)
            }
        }
    }

    /// Gives a lease of a hosted fold back: another broker may claim the batch at once.
    pub async fn release(&self, queue: QueueNo, group: &str, pid: Pid, lease: Uuid) {
        give_back(&self.inner, lease, vec![pid.0]).await;
        self.inner.released(queue, group, pid);
    }

    /// Gives leases back as soon as the store lets it, then proposes the partitions after `wait`.
    ///
    /// Leases may be unknown to the store: they are those of calls that got no answer.
    pub fn release_later(
        &self,
        lanes: &Arc<Lanes>,
        pids: Vec<i64>,
        leases: Vec<Uuid>,
        wait: Duration,
    ) {
        let (inner, lanes) = (Arc::clone(&self.inner), Arc::clone(lanes));
        self.inner.tasks.spawn(async move {
            for lease in leases {
                give_back(&inner, lease, pids.clone()).await;
            }
            for pid in pids {
                lanes.offer_in(Pid(pid), wait);
            }
        });
    }

    /// Proposes a partition to a group now.
    pub fn offer(&self, lanes: &Lanes, pid: Pid) {
        lanes.offer(pid);
    }

    /// Proposes a partition to a group after a while.
    pub fn offer_in(&self, lanes: &Lanes, pid: Pid, wait: Duration) {
        lanes.offer_in(pid, wait);
    }

    /// The partition of a claim by its number; `None` when it was deleted.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partition_of(
        &self,
        queue: &Arc<crate::db::queue::Queue>,
        pid: Pid,
    ) -> Result<Option<Arc<Partition>>, Error> {
        if let Some(known) = self.inner.directory.by_pid(pid) {
            return Ok(Some(known));
        }
        let Some((id, name)) = self.inner.db.partition_name(pid).await? else { return Ok(None) };
        let partition = Arc::new(Partition { id, name, queue: Arc::clone(queue) });
        self.inner.directory.learn(&partition);
        Ok(Some(partition))
    }
}
