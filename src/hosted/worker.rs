//! One partition of one query: claim, load, fold, commit, and on with the next batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::Handle;
use super::batch::{self, Frame, Origin};
use super::cache::Shard;
use super::guest::{CallError, Input};
use super::runner::Run;
use crate::broker::{ClaimedBatch, ClaimedMessage, CycleError, LaneClaim, Lanes, Partition};
use crate::db::queue::Queue;
use crate::fold::{Ack, Clock, Context, Finished};
use crate::types::cycle::{DeadLetter, NextClaim, Settlement};
use crate::types::id::Pid;
use crate::types::limits::{HOSTED_BATCH_BYTES_MAX, HOSTED_BATCH_MS_MAX, HOSTED_LEASE_MS};

/// Batches of one partition in a row before the slot is given to another one.
const SLICE: u32 = 64;
/// Reads of a shard that others keep changing before the partition is left for later.
const CHANGES_MAX: u32 = 8;
/// Pause before a partition is tried again after a failure that is nobody's fault.
pub(super) const HOST_PAUSE: Duration = Duration::from_millis(300);
/// Wait of a closed gate that names none.
const GATE_PAUSE: Duration = Duration::from_millis(100);

/// A claimed batch under work.
pub(super) struct Work<'a> {
    pub(super) run: &'a Arc<Run>,
    pub(super) queue: &'a Arc<Queue>,
    pub(super) lanes: &'a Arc<Lanes>,
    pub(super) partition: Arc<Partition>,
    pub(super) pid: Pid,
    pub(super) lease: Uuid,
    pub(super) messages: Arc<Vec<ClaimedMessage>>,
    pub(super) shard: Arc<Shard>,
    pub(super) claimed_at: Instant,
    pub(super) leased_at: Instant,
}

/// What follows a step.
pub(super) enum Flow {
    /// The next batch of the partition, claimed under its own lease.
    Next(Uuid, ClaimedBatch),
    /// The shard changed: read it again, fold again.
    Again,
    /// Nothing more to do here; the lease is settled, given back or lost.
    Done,
}

/// What a commit settles.
pub(super) struct Commit<'o> {
    pub(super) finished: &'o Finished,
    /// Messages that the outcome covers.
    pub(super) n: usize,
    /// End the lease and claim on.
    pub(super) on: bool,
    /// Given up beside the outcome's own rejects.
    pub(super) dead: Vec<DeadLetter>,
}

impl Handle {
    /// Works on a partition until it is empty, its slice is over, or the query stops.
    pub(super) async fn work(
        &self,
        run: &Arc<Run>,
        queue: &Arc<Queue>,
        lanes: &Arc<Lanes>,
        pid: Pid,
    ) {
        let broker = &self.shared.broker;
        let lease = Uuid::now_v7();
        let claimed_at = Instant::now();
        let claimed = broker
            .claim_one(lanes, pid, lease, run.batch(), HOSTED_BATCH_BYTES_MAX, HOSTED_LEASE_MS)
            .await;
        let batch = match claimed {
            Ok(LaneClaim::Claimed(batch)) => batch,
            Ok(LaneClaim::Nothing) => return,
            // The broker gives the lease back and proposes the partition again.
            Err(cause) => {
                tracing::debug!(query = run.label(), %cause, "claim failed");
                return;
            }
        };
        let partition = match broker.partition_of(queue, pid).await {
            Ok(Some(partition)) => partition,
            Ok(None) => return,
            Err(cause) => {
                tracing::debug!(query = run.label(), %cause, "partition not read");
                broker.release(queue.no, &run.row.query.group(), pid, lease).await;
                return;
            }
        };
        let mut work = Work {
            run,
            queue,
            lanes,
            partition,
            pid,
            lease,
            messages: Arc::new(batch.messages),
            shard: Arc::default(),
            claimed_at,
            leased_at: claimed_at,
        };
        let mut loaded = false;
        let (mut slices, mut changes) = (0, 0);
        loop {
            if !loaded {
                match self.shard(run, pid).await {
                    Ok(shard) => work.shard = Arc::new(shard),
                    Err(cause) => {
                        tracing::debug!(query = run.label(), %cause, "state not read");
                        self.give_up(&work, HOST_PAUSE);
                        return;
                    }
                }
                loaded = true;
            }
            let last = slices >= SLICE || run.stop.is_cancelled();
            match self.step(&mut work, !last).await {
                Flow::Next(lease, batch) => {
                    slices += 1;
                    changes = 0;
                    work.lease = lease;
                    work.messages = Arc::new(batch.messages);
                    work.claimed_at = Instant::now();
                    work.leased_at = work.claimed_at;
                }
                Flow::Again => {
                    loaded = false;
                    changes += 1;
                    if changes > CHANGES_MAX {
                        self.give_up(&work, HOST_PAUSE);
                        return;
                    }
                }
                Flow::Done => {
                    if let Ok(shard) = Arc::try_unwrap(work.shard) {
                        run.shards.put(pid, shard);
                    }
                    return;
                }
            }
        }
    }

    /// Folds the batch and commits it.
    async fn step(&self, work: &mut Work<'_>, on: bool) -> Flow {
        let n = work.messages.len();
        match self.fold(work, n).await {
            Ok(finished) => {
                let commit = Commit { finished: &finished, n, on, dead: Vec::new() };
                self.commit(work, commit).await
            }
            Err(CallError::Changed) => Flow::Again,
            Err(CallError::Store(cause)) => {
                tracing::debug!(query = work.run.label(), %cause, "state not read");
                self.give_up(work, HOST_PAUSE);
                Flow::Done
            }
            Err(cause) => self.failed(work, cause, on).await,
        }
    }

    /// One guest call over the first `n` messages. Commits nothing.
    pub(super) async fn fold(&self, work: &mut Work<'_>, n: usize) -> Result<Finished, CallError> {
        self.renew(work).await;
        let run = work.run;
        let now = match run.manifest.clock {
            Clock::Messages => work
                .messages
                .iter()
                .take(n)
                .map(|m| m.created_at.as_millisecond())
                .max()
                .unwrap_or_default(),
            Clock::Host => self.shared.broker.db().clock_ms().await?,
        };
        let ctx = Context {
            query: run.row.query.name.clone(),
            partition: work.partition.name.clone(),
            partition_id: work.partition.id.0.to_string(),
            params: run.row.params.clone(),
            now,
            watermark: work.shard.watermark_ms,
        };
        let input = Input::Batch(Arc::clone(&work.messages), n);
        let called = Instant::now();
        let outcome = self.call(run, work.pid, &work.shard, ctx, input).await;
        let us = u64::try_from(called.elapsed().as_micros()).unwrap_or(u64::MAX);
        let metrics = self.shared.broker.metrics();
        metrics.hosted_guest_us.with_label_values(&[run.label()]).inc_by(us);
        outcome
    }

    /// Renews the lease of a batch that takes long, within a bound: a renewal that fails or is over
    /// the bound only means that the commit will be refused.
    async fn renew(&self, work: &mut Work<'_>) {
        let third = Duration::from_millis(HOSTED_LEASE_MS.unsigned_abs() / 3);
        let most = Duration::from_millis(HOSTED_BATCH_MS_MAX);
        if work.leased_at.elapsed() < third || work.claimed_at.elapsed() > most {
            return;
        }
        tracing::warn!(
            query = work.run.label(),
            partition = work.partition.name,
            seconds = work.claimed_at.elapsed().as_secs(),
            "a batch takes long, its lease is renewed"
        );
        let db = self.shared.broker.db();
        let pids = [work.pid.0];
        let tenant = work.run.row.query.tenant;
        let renewed =
            db.lease_extend(tenant, work.lease, Some(&pids), HOSTED_LEASE_MS / 1000).await;
        if renewed.is_ok() {
            work.leased_at = Instant::now();
        }
    }

    /// Commits an outcome over the first `n` messages of the batch.
    pub(super) async fn commit(&self, work: &mut Work<'_>, commit: Commit<'_>) -> Flow {
        let Commit { finished, n, on, dead } = commit;
        let run = work.run;
        let outcome = &finished.outcome;
        let acked = outcome.acked(n) + dead.len();
        let gate = match outcome.ack {
            Ack::Prefix { retry_after_ms, .. } if acked < n => {
                Some(retry_after_ms.map_or(GATE_PAUSE, |ms| Duration::from_millis(u64::from(ms))))
            }
            Ack::All | Ack::Prefix { .. } => None,
        };
        if acked == 0 {
            // A closed gate settles nothing: the batch waits, in order.
            self.give_up(work, gate.unwrap_or(GATE_PAUSE));
            return Flow::Done;
        }
        let next = (on && gate.is_none()).then(|| NextClaim {
            lease: Uuid::now_v7(),
            batch: run.batch(),
            bytes: HOSTED_BATCH_BYTES_MAX,
            lease_ms: HOSTED_LEASE_MS,
        });
        let settlement = batch::settle(work.lease, acked, work.messages.len(), true);
        self.commit_as(work, outcome, dead, settlement, acked, next, gate).await
    }

    /// Sends the cycle, and takes in what came of it.
    #[expect(clippy::too_many_arguments, reason = "the parts of one cycle")]
    pub(super) async fn commit_as(
        &self,
        work: &mut Work<'_>,
        outcome: &crate::fold::Outcome,
        dead: Vec<DeadLetter>,
        settlement: Settlement,
        acked: usize,
        next: Option<NextClaim>,
        gate: Option<Duration>,
    ) -> Flow {
        let run = work.run;
        let broker = &self.shared.broker;
        let first = work.messages.first().map_or(0, |m| m.offset);
        let ops = batch::state_ops(outcome);
        let frame = Frame {
            row: &run.row,
            partition: work.partition.id,
            origin: Origin::Batch(first),
            expected_version: work.shard.version,
            settlement,
            messages: i64::try_from(acked).unwrap_or(i64::MAX),
            backoff_ms: 0,
            next,
            keep_dead: work.queue.options.dead_letter,
        };
        let mut cycle = batch::cycle(&frame, outcome, ops.clone(), &work.messages);
        cycle.dead_letters.extend(dead);
        let emits = cycle.emits.len() as u64;
        let tallies = cycle.hosted.as_ref().map(|h| h.tallies.clone()).unwrap_or_default();
        let given_up = i64::try_from(cycle.dead_letters.len()).unwrap_or(i64::MAX);
        let committed = broker.cycle(cycle).await;
        let label = run.label();
        let metrics = broker.metrics();
        match committed {
            Ok((receipt, lane)) => {
                run.clean();
                metrics.hosted_cycles.with_label_values(&[label, "committed"]).inc();
                metrics.hosted_messages.with_label_values(&[label]).inc_by(acked as u64);
                metrics.hosted_emits.with_label_values(&[label]).inc_by(emits);
                for (cause, n) in tallies {
                    metrics.hosted_tallies.with_label_values(&[label, &cause]).inc_by(n);
                }
                let us = u64::try_from(work.claimed_at.elapsed().as_micros()).unwrap_or(u64::MAX);
                metrics.hosted_cycle_us.with_label_values(&[label]).inc_by(us);
                if given_up > 0 {
                    self.given_up(&run.row, given_up).await;
                }
                Arc::make_mut(&mut work.shard).apply(ops, receipt.version, outcome.watermark);
                if receipt.next_due_ms.is_some() {
                    self.shared.due.notify_one();
                }
                if let Some(wait) = gate {
                    broker.offer_in(work.lanes, work.pid, wait);
                }
                match next {
                    Some(next) => self.claimed_next(work, lane, next.lease).await,
                    None => Flow::Done,
                }
            }
            Err(CycleError::ShardChanged) => Flow::Again,
            Err(CycleError::LeaseLost) => {
                metrics.hosted_cycles.with_label_values(&[label, "lease_lost"]).inc();
                tracing::info!(query = label, partition = work.partition.name, "lease lost");
                work.shard = Arc::default();
                Flow::Done
            }
            Err(cause) => {
                metrics.hosted_cycles.with_label_values(&[label, "failed"]).inc();
                let text = crate::telemetry::chain(&cause);
                tracing::warn!(query = label, cause = text, "cycle not committed");
                // Whether it was committed is not known: nothing of the cache is trusted, and the
                // next batch may be leased already.
                work.shard = Arc::default();
                let leases = std::iter::once(work.lease).chain(next.map(|next| next.lease));
                let pids = vec![work.pid.0];
                broker.release_later(work.lanes, pids, leases.collect(), HOST_PAUSE);
                Flow::Done
            }
        }
    }

    async fn claimed_next(
        &self,
        work: &Work<'_>,
        lane: Option<crate::db::claim::Lane>,
        lease: Uuid,
    ) -> Flow {
        match self.shared.broker.claimed_in_cycle(work.lanes, lane, lease).await {
            Ok(LaneClaim::Claimed(batch)) => Flow::Next(lease, batch),
            Ok(LaneClaim::Nothing) => Flow::Done,
            Err(cause) => {
                tracing::warn!(query = work.run.label(), %cause, "next batch not read");
                Flow::Done
            }
        }
    }

    /// Gives the lease back and tries the partition again after a while.
    pub(super) fn give_up(&self, work: &Work<'_>, wait: Duration) {
        let broker = &self.shared.broker;
        broker.release_later(work.lanes, vec![work.pid.0], vec![work.lease], wait);
    }
}
