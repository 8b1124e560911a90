//! Windows that close without traffic.
//!
//! Any broker sweeps due shards by index and runs the fold's flush entry on their due rows, as a
//! cycle without ack. The shard's version keeps a flush and a batch, here or on another broker,
//! from closing one window twice.

use std::sync::Arc;
use std::time::Duration;

use super::Handle;
use super::batch::{self, Frame, Origin};
use super::guest::{CallError, Input};
use super::poison::detail;
use super::runner::Run;
use crate::broker::{CycleError, Partition, QueryError};
use crate::db;
use crate::db::deadline::DueShard;
use crate::db::hosted::RunState;
use crate::db::state::{ShardQuery, ShardRow};
use crate::fold::Context;
use crate::types::cycle::{Settlement, StateOp, Timers};
use crate::types::id::{PartitionId, TenantId};

/// Shards of one sweep.
const SWEEP: i64 = 64;
/// Due rows of one flush call.
const ROWS_MAX: i64 = 1_000;
/// Longest time between two looks at the store.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Attempts at a shard that others keep changing.
const CHANGES_MAX: u32 = 5;
/// Failed flushes in a row after which a query halts.
const STRIKES_MAX: u32 = 6;

/// What a flush that an operator asked for did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Partitions that had rows with a due time.
    pub partitions: u64,
    /// Cycles committed.
    pub cycles: u64,
    /// Messages emitted.
    pub emits: u64,
}

/// Why a flush failed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// No query of that name.
    #[error("query {0:?} not found")]
    NotFound(String),
    /// The query is run by outside workers.
    #[error("query {0:?} is not hosted: outside workers run it")]
    NotHosted(String),
    /// The query is paused, halted or just starting on this broker.
    #[error("query {0:?} is not running: resume it first")]
    NotRunning(String),
    /// The fold failed, or the shard kept changing.
    #[error("the flush failed: {0}")]
    Failed(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] db::Error),
}

/// One flush call of one shard.
struct Tick {
    partition: PartitionId,
    /// Rows due at or before this are flushed; what the fold sees as now. Unix ms.
    bound_ms: i64,
}

/// What one flush call did.
#[derive(Default)]
struct Closed {
    rows: usize,
    emits: u64,
    more: bool,
}

impl Handle {
    /// Looks for due shards until the folds are stopped.
    pub(super) async fn deadline_loop(self) {
        let gauge = self.shared.broker.metrics().loops.with_label_values(&["deadlines"]);
        gauge.set(1);
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                () = self.shared.stop.cancelled() => break,
                () = self.shared.due.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            wait = match self.sweep().await {
                Ok(wait) => wait,
                Err(cause) => {
                    tracing::debug!(%cause, "due shards were not read");
                    LOOK_MAX
                }
            };
        }
        gauge.set(0);
    }

    /// Flushes what is due; gives how long nothing is.
    async fn sweep(&self) -> Result<Duration, db::Error> {
        let db = self.shared.broker.db();
        if self.running().is_empty() {
            return Ok(LOOK_MAX);
        }
        let due = db.due_shards(SWEEP).await?;
        let mut work = Vec::with_capacity(due.len());
        for shard in due {
            let Some(run) = self.running_query(shard.query) else { continue };
            let handle = self.clone();
            let tick = Tick { partition: shard.partition, bound_ms: bound(&run, &shard) };
            work.push(self.shared.tasks.spawn(async move { handle.flush_due(&run, tick).await }));
        }
        let busy = !work.is_empty();
        for task in work {
            if let Err(cause) = task.await {
                tracing::error!(%cause, "a flush task ended badly");
            }
        }
        if busy {
            return Ok(Duration::ZERO);
        }
        let wait = db.next_wake_ms().await?.map_or(LOOK_MAX, |ms| {
            Duration::from_millis(u64::try_from(ms.max(0)).unwrap_or(0) + 1)
        });
        // A wake time in the past belongs to a query that does not run here.
        Ok(wait.clamp(Duration::from_millis(5), LOOK_MAX))
    }

    /// Flushes a due shard until nothing is due; failures are recorded, the sweep comes again.
    async fn flush_due(&self, run: &Arc<Run>, tick: Tick) {
        loop {
            match self.flush_once(run, &tick).await {
                Ok(closed) if closed.more && closed.rows > 0 => {}
                Ok(_) => return,
                Err(FlushError::Failed(text)) => {
                    tracing::warn!(query = run.label(), text, "flush failed");
                    let (strikes, _) = run.strike();
                    if strikes >= STRIKES_MAX {
                        let reason = format!("{strikes} flushes failed in a row: {text}");
                        self.halt(run, RunState::Halted, &reason).await;
                    }
                    return;
                }
                Err(cause) => {
                    tracing::debug!(query = run.label(), %cause, "flush put off");
                    return;
                }
            }
        }
    }

    /// One flush call, repeated while the shard changes under it.
    async fn flush_once(&self, run: &Arc<Run>, tick: &Tick) -> Result<Closed, FlushError> {
        let found = self.shared.broker.partition_find(tick.partition).await?;
        let Some(partition) = found else { return Ok(Closed::default()) };
        for _ in 0..CHANGES_MAX {
            if let Some(closed) = self.flush_attempt(run, tick, &partition).await? {
                return Ok(closed);
            }
        }
        Err(FlushError::Failed("the shard changed during every attempt".to_owned()))
    }

    /// `None`: the shard changed meanwhile.
    async fn flush_attempt(
        &self,
        run: &Arc<Run>,
        tick: &Tick,
        partition: &Arc<Partition>,
    ) -> Result<Option<Closed>, FlushError> {
        let broker = &self.shared.broker;
        let pid = tick.partition.pid();
        let which = ShardQuery::Some { keys: &[], prefixes: &[], due: Some(tick.bound_ms) };
        let read = broker.db().shard_read(pid, run.row.query.no, which, ROWS_MAX).await?;
        let due: Vec<(String, ShardRow)> = read.rows;
        // The call may read more than what is due, at the same version.
        let shard = Arc::new(self.shard(run, pid).await?);
        if shard.version != read.version {
            return Ok(None);
        }
        let ctx = Context {
            query: run.row.query.name.clone(),
            partition: partition.name.clone(),
            partition_id: partition.id.0.to_string(),
            params: run.row.params.clone(),
            now: tick.bound_ms,
            watermark: read.watermark_ms,
        };
        let rows: Vec<_> = due.iter().map(|(k, row)| (k.clone(), row.value.clone())).collect();
        let outcome = match self.call(run, pid, &shard, ctx, Input::Flush(rows)).await {
            Ok(finished) => finished.outcome,
            Err(CallError::Changed) => return Ok(None),
            Err(CallError::Store(cause)) => return Err(cause.into()),
            Err(cause) => {
                let mut shown = detail(&run.row, &cause);
                shown["partition"] = serde_json::json!(partition.name);
                shown["entry"] = serde_json::json!("flush");
                self.record(&run.row, &shown).await;
                return Err(FlushError::Failed(cause.to_string()));
            }
        };
        let ops = batch::state_ops(&outcome);
        let left = still_due(&due, &ops, tick.bound_ms);
        let more = i64::try_from(due.len()).is_ok_and(|n| n >= ROWS_MAX);
        let frame = Frame {
            row: &run.row,
            partition: tick.partition,
            origin: Origin::Flush(read.version),
            expected_version: read.version,
            settlement: Settlement::None,
            messages: 0,
            // A fold that leaves its due rows as they are must not spin.
            backoff_ms: if left { 1_000 } else { 0 },
            next: None,
            keep_dead: false,
        };
        let cycle = batch::cycle(&frame, &outcome, ops.clone(), &[]);
        let emits = cycle.emits.len() as u64;
        match broker.cycle(cycle).await {
            Ok((receipt, _)) => {
                run.clean();
                let metrics = broker.metrics();
                metrics.hosted_cycles.with_label_values(&[run.label(), "flushed"]).inc();
                metrics.hosted_emits.with_label_values(&[run.label()]).inc_by(emits);
                if let Ok(mut shard) = Arc::try_unwrap(shard) {
                    shard.apply(ops, receipt.version, outcome.watermark);
                    run.shards.put(pid, shard);
                }
                Ok(Some(Closed { rows: due.len(), emits, more: more && !left }))
            }
            Err(CycleError::ShardChanged) => Ok(None),
            Err(CycleError::Store(cause)) => Err(cause.into()),
            Err(cause) => Err(FlushError::Failed(cause.to_string())),
        }
    }

    /// Closes what is due up to an instant (`None`: now) on every partition of a query: an
    /// operator says that a bounded input has ended.
    ///
    /// # Errors
    /// Any [`FlushError`]; partitions flushed before the failure stay flushed.
    pub async fn flush(
        &self,
        tenant: TenantId,
        name: &str,
        to_ms: Option<i64>,
    ) -> Result<Flushed, FlushError> {
        let broker = &self.shared.broker;
        let query = broker.query_named(tenant, name).await.map_err(|cause| match cause {
            QueryError::Store(cause) => FlushError::Store(cause),
            QueryError::NotFound(name) | QueryError::NotHosted(name) => FlushError::NotFound(name),
        })?;
        let hosted = broker.db().hosted_list(Some(tenant), Some(name)).await?;
        match hosted.first().map(|row| row.state) {
            None => return Err(FlushError::NotHosted(name.to_owned())),
            Some(RunState::Running) => {}
            Some(_) => return Err(FlushError::NotRunning(name.to_owned())),
        }
        let run =
            self.running_query(query.no).ok_or_else(|| FlushError::NotRunning(name.to_owned()))?;
        let bound_ms = match to_ms {
            Some(ms) => ms,
            None => broker.db().clock_ms().await?,
        };
        let mut done = Flushed::default();
        for partition in broker.db().open_shards(query.no).await? {
            done.partitions += 1;
            let tick = Tick { partition, bound_ms };
            loop {
                let closed = self.flush_once(&run, &tick).await?;
                done.cycles += 1;
                done.emits += closed.emits;
                if !closed.more || closed.rows == 0 {
                    break;
                }
            }
        }
        Ok(done)
    }
}

/// Up to when rows of a due shard are flushed.
fn bound(run: &Run, shard: &DueShard) -> i64 {
    match run.row.timers {
        Timers::Clock => shard.now_ms,
        Timers::Watermark => match (shard.watermark_ms, shard.next_due_ms) {
            (Some(watermark), Some(due)) if due <= watermark => watermark,
            // The silence rule: the clock becomes the watermark.
            _ => shard.now_ms,
        },
    }
}

/// Whether any of the due rows stays due after the ops.
fn still_due(due: &[(String, ShardRow)], ops: &[StateOp], bound_ms: i64) -> bool {
    due.iter().any(|(key, _)| match ops.iter().rev().find(|op| op.key() == key) {
        Some(StateOp::Upsert { due_ms, .. }) => due_ms.is_some_and(|at| at <= bound_ms),
        Some(StateOp::Delete { .. }) => false,
        None => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_no_op_touches_stays_due() {
        let row = |key: &str| (key.to_owned(), ShardRow { value: "1".to_owned(), due_ms: Some(5) });
        let delete = |key: &str| StateOp::Delete { key: key.to_owned() };
        let later = StateOp::Upsert { key: "b".to_owned(), value: "2".to_owned(), due_ms: Some(9) };
        assert!(!still_due(&[row("a"), row("b")], &[delete("a"), later.clone()], 5));
        assert!(still_due(&[row("a"), row("b")], &[later], 5));
        assert!(still_due(&[row("a")], &[], 5));
    }
}
