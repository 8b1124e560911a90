//! The one commit path: state ops, sink appends and settlement of outside workers and hosted folds.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::appender::{NewMessage, Packer, Place};
use super::directory::labels;
use super::{Broker, Partition};
use crate::db::append::Append;
use crate::db::claim::Lane;
use crate::db::cycle::{CycleRow, PackedCycle, Upsert};
use crate::db::queue::{NewPartition, NewQueue, Queue};
use crate::db::{Error, Refusal};
use crate::types::cycle::{
    AppendReceipt, Cycle, CycleReceipt, Settled, Settlement, SinkAppend, StateOp,
};
use crate::types::id::{QueryNo, TxnHash};
use crate::types::json;
use crate::types::limits::{RETRIES_MAX, STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX};

/// Why a cycle was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CycleError {
    /// The source partition is not the caller's or does not exist (streams Y8).
    #[error("partition not found")]
    PartitionNotFound,
    /// The query is not the caller's or does not exist (streams Y9).
    #[error("query not found")]
    QueryNotFound,
    /// No lease, another holder, or expired (streams A2).
    #[error("invalid or expired lease")]
    LeaseLost,
    /// The lease records no batch (streams A8).
    #[error("the lease has no recorded batch")]
    NoBatch,
    /// A partial ack that was applied before (streams X9).
    #[error("already applied: the acked message is at or below the cursor")]
    AlreadyApplied,
    /// Somebody changed the shard since a hosted fold read it.
    #[error("the shard changed since it was read")]
    ShardChanged,
    /// A state op that the store cannot hold.
    #[error("state op {index}: {reason}")]
    StateOp {
        /// Place in the request.
        index: usize,
        /// What is wrong, with limit and value.
        reason: String,
    },
    /// A value that the store cannot hold.
    #[error("{0}")]
    Value(String),
    /// The store failed: nothing or everything is committed.
    #[error("the store failed")]
    Store(#[source] Error),
    /// The broker is stopping; nothing was committed.
    #[error("the broker is stopping")]
    Stopping,
}

impl From<Error> for CycleError {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { refusal, text } => match refusal {
                Refusal::PartitionNotFound => Self::PartitionNotFound,
                Refusal::QueryNotFound => Self::QueryNotFound,
                Refusal::LeaseLost => Self::LeaseLost,
                Refusal::NoBatch => Self::NoBatch,
                Refusal::AlreadyApplied => Self::AlreadyApplied,
                Refusal::ShardVersion => Self::ShardChanged,
                Refusal::DedupStale | Refusal::SinkMissing | Refusal::PartitionCollision => {
                    Self::Value(text)
                }
            },
            Error::Value(text, _) => Self::Value(text),
            other => Self::Store(other),
        }
    }
}

/// Messages of one (queue, partition) of a cycle, in order.
struct SinkGroup {
    queue: String,
    partition: String,
    messages: Vec<NewMessage>,
}

/// Where a sink group goes. A queue that the cycle itself makes has default options.
struct Target {
    partition: NewPartition,
    window_ms: i64,
    queue: Option<Arc<Queue>>,
}

/// A sink group with its numbers and segments.
struct PackedSink {
    target: NewPartition,
    queue: String,
    partition: String,
    places: Vec<(Place, bool)>,
    appends: usize,
}

impl Broker {
    /// Commits a cycle: all of it or nothing (streams Y1).
    ///
    /// Gives the receipt, and for a hosted fold the claim of the next batch.
    ///
    /// # Errors
    /// Every [`CycleError`] but [`CycleError::Store`] means that nothing was committed.
    pub async fn cycle(&self, cycle: Cycle) -> Result<(CycleReceipt, Option<Lane>), CycleError> {
        // A task of its own: a caller that goes away must not cost the wake-ups after the commit.
        let broker = self.clone();
        let task = self.inner.tasks.spawn(async move { broker.cycle_to_end(cycle).await });
        task.await.unwrap_or_else(|cause| std::panic::resume_unwind(cause.into_panic()))
    }

    async fn cycle_to_end(&self, cycle: Cycle) -> Result<(CycleReceipt, Option<Lane>), CycleError> {
        let inner = &self.inner;
        let partition = inner
            .directory
            .partition(&inner.db, cycle.partition_id)
            .await?
            .filter(|p| p.queue.tenant == cycle.tenant)
            .ok_or(CycleError::PartitionNotFound)?;
        let query = inner
            .directory
            .query(&inner.db, cycle.tenant, cycle.query_id)
            .await?
            .ok_or(CycleError::QueryNotFound)?;
        let outcome = self.cycle_on(&partition, query, cycle).await;
        let label = match &outcome {
            Ok(_) => "committed",
            Err(CycleError::Store(_)) => "failed",
            Err(_) => "refused",
        };
        inner.metrics.cycles.with_label_values(&[label]).inc();
        match &outcome {
            // What was remembered of them may be out of date.
            Err(CycleError::PartitionNotFound) => inner.directory.forget_partition(partition.id),
            Err(CycleError::QueryNotFound) => inner.directory.forget_queries(),
            _ => {}
        }
        outcome
    }

    async fn cycle_on(
        &self,
        partition: &Arc<Partition>,
        query: QueryNo,
        cycle: Cycle,
    ) -> Result<(CycleReceipt, Option<Lane>), CycleError> {
        let ops_applied = cycle.ops.len();
        let (upserts, deletes) = collapse(cycle.ops)?;
        let sinks = group_sinks(cycle.emits);
        let mut packed = PackedCycle {
            partition: partition.id,
            query,
            group: cycle.group,
            settlement: cycle.settlement,
            upserts,
            deletes,
            appends: Vec::new(),
            dead_letters: cycle.dead_letters,
            hosted: cycle.hosted,
        };
        let mut attempt = 0;
        loop {
            let (targets, create_queues) = self.resolve(cycle.tenant, &sinks).await?;
            let mut plans = Vec::with_capacity(sinks.len());
            packed.appends.clear();
            let windows: Vec<_> =
                targets.iter().map(|t| (t.partition.pid(), t.window_ms)).collect();
            self.inner.dedup_refresh(&windows).await?;
            for (sink, target) in sinks.iter().zip(targets) {
                plans.push(self.pack(sink, target, &mut packed.appends).await?);
            }
            let create: Vec<NewPartition> = plans
                .iter()
                .filter(|p| !self.inner.directory.exists(p.target.pid()))
                .map(|p| p.target.clone())
                .collect();
            let outcome = if create.is_empty() && create_queues.is_empty() {
                let answer =
                    self.inner.committer.submit(packed.clone()).ok_or(CycleError::Stopping)?;
                answer.await.map_err(|_closed| CycleError::Stopping)?
            } else {
                let alone = std::slice::from_ref(&packed);
                let made = self.inner.db.cycles_creating(alone, &create, &create_queues).await;
                made.map(|mut rows| rows.remove(0))
            };
            attempt += 1;
            match outcome {
                Ok(row) => {
                    return Ok(self.committed(partition, &packed, ops_applied, &plans, row));
                }
                Err(cause) if attempt <= RETRIES_MAX => match cause.refusal() {
                    Some(Refusal::DedupStale) => {
                        for plan in &plans {
                            self.inner.dedup.forget(plan.target.pid());
                        }
                    }
                    Some(Refusal::SinkMissing) => {
                        for plan in &plans {
                            self.inner.directory.forget_partition(plan.target.id);
                            self.inner.directory.forget_queue(plan.target.queue);
                        }
                    }
                    _ => return Err(cause.into()),
                },
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Finds the sink partitions, and which queues must be made first.
    async fn resolve(
        &self,
        tenant: crate::types::id::TenantId,
        sinks: &[SinkGroup],
    ) -> Result<(Vec<Target>, Vec<NewQueue>), Error> {
        let inner = &self.inner;
        let mut create: Vec<NewQueue> = Vec::new();
        let mut targets = Vec::with_capacity(sinks.len());
        for sink in sinks {
            let found = inner.directory.queue(&inner.db, tenant, &sink.queue).await?;
            if let Some(queue) = found {
                let window_ms = i64::from(queue.options.dedup_window_s) * 1000;
                let id = queue.partition_id(&sink.partition);
                // Learns whether the partition exists.
                inner.directory.partition(&inner.db, id).await?;
                let partition = NewPartition { queue: queue.no, id, name: sink.partition.clone() };
                targets.push(Target { partition, window_ms, queue: Some(queue) });
                continue;
            }
            let new = match create.iter().find(|q| q.name == sink.queue) {
                Some(new) => new.clone(),
                None => {
                    let (namespace, task) = labels(&sink.queue);
                    let new = NewQueue {
                        tenant,
                        id: uuid::Uuid::now_v7(),
                        name: sink.queue.clone(),
                        namespace: namespace.to_owned(),
                        task: task.to_owned(),
                        options: inner.implicit.clone(),
                    };
                    create.push(new.clone());
                    new
                }
            };
            // The number is filled in by the transaction that makes the queue.
            let id = crate::types::id::PartitionId::derive(new.id, &sink.partition);
            let partition =
                NewPartition { queue: Queue::NUMBER_PENDING, id, name: sink.partition.clone() };
            let window_ms = i64::from(new.options.dedup_window_s) * 1000;
            targets.push(Target { partition, window_ms, queue: None });
        }
        create.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((targets, create))
    }

    /// Leaves out duplicates and packs the rest of one sink group.
    async fn pack(
        &self,
        sink: &SinkGroup,
        target: Target,
        appends: &mut Vec<Append>,
    ) -> Result<PackedSink, Error> {
        let Target { partition: target, window_ms, queue } = target;
        let encrypted = queue.filter(|queue| queue.options.encryption_enabled);
        let pid = target.pid();
        let known = self.inner.dedup_known(pid, window_ms);
        let mut packer = Packer::default();
        let mut seen: HashMap<TxnHash, Place> = HashMap::new();
        let mut places = Vec::with_capacity(sink.messages.len());
        for message in &sink.messages {
            let hash = message.transaction_id.as_deref().map(TxnHash::of);
            if let Some(hash) = hash {
                let first = match seen.get(&hash) {
                    Some(first) => Some(*first),
                    None => self.inner.find_original(pid, hash, message, window_ms).await?,
                };
                if let Some(first) = first {
                    places.push((first, true));
                    continue;
                }
            }
            let place = match &encrypted {
                Some(queue) => {
                    let payload = self.inner.sealed(queue, message.payload.clone());
                    packer.push(&NewMessage { payload, ..message.clone() }, hash)
                }
                None => packer.push(message, hash),
            };
            if let Some(hash) = hash {
                seen.insert(hash, place);
            }
            places.push((place, false));
        }
        let before = appends.len();
        appends.extend(packer.finish(pid, known, window_ms));
        Ok(PackedSink {
            target,
            queue: sink.queue.clone(),
            partition: sink.partition.clone(),
            places,
            appends: appends.len() - before,
        })
    }

    /// Bookkeeping after the commit: wake-ups, dedup knowledge, counters, the receipt.
    fn committed(
        &self,
        source: &Arc<Partition>,
        packed: &PackedCycle,
        ops_applied: usize,
        plans: &[PackedSink],
        row: CycleRow,
    ) -> (CycleReceipt, Option<Lane>) {
        let inner = &self.inner;
        let mut appends = Vec::with_capacity(plans.len());
        let mut at = 0;
        let mut stored_n = 0;
        for plan in plans {
            let mine = &packed.appends[at..at + plan.appends];
            let rows: &[(i64, Timestamp)] = &row.appended[at..at + plan.appends];
            at += plan.appends;
            let mut bases = Vec::with_capacity(mine.len());
            let mut queue = plan.target.queue;
            for (append, (base, created_at)) in mine.iter().zip(rows) {
                inner.dedup_appended(append, *base, *created_at);
                bases.push((*base, i64::from(append.segment.n)));
            }
            if queue == Queue::NUMBER_PENDING
                && let Some(made) = row.made_queues.iter().find(|q| q.name == plan.queue)
            {
                queue = made.no;
            }
            if !mine.is_empty() {
                inner.appended(queue, plan.target.pid());
            }
            let first = plan.places.first().map(|(place, _)| place.resolve(&bases).1);
            let stored = bases.iter().map(|b| b.1).sum();
            stored_n += stored;
            appends.push(AppendReceipt {
                queue: plan.queue.clone(),
                partition: plan.partition.clone(),
                base_offset: first.unwrap_or_default(),
                stored,
                created_at: rows.first().map(|r| r.1),
            });
        }
        if stored_n > 0 {
            inner.metrics.requests.with_label_values(&["push"]).inc();
            let stored_n = u64::try_from(stored_n).unwrap_or_default();
            inner.metrics.messages.with_label_values(&["push"]).inc_by(stored_n);
        }
        match packed.settlement {
            Settlement::Completed { .. } | Settlement::Partial { .. } => {
                let done = row.count.and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
                inner.metrics.messages.with_label_values(&["ack"]).inc_by(done);
            }
            Settlement::Failed { count, .. } => {
                inner.metrics.ack_failed.inc_by(u64::try_from(count).unwrap_or_default());
            }
            Settlement::None => {}
        }
        inner.metrics.dead_letters.inc_by(packed.dead_letters.len() as u64);
        // A claim in the same call has already taken what the release made claimable.
        let claims = packed.hosted.as_ref().is_some_and(|h| h.next.is_some());
        if row.released == Some(true) && !claims {
            inner.released(source.queue.no, &packed.group, packed.partition.pid());
        }
        let settled =
            row.count.zip(row.released).map(|(count, released)| Settled { count, released });
        let receipt = CycleReceipt {
            queue_name: source.queue.name.clone(),
            ops_applied,
            appends,
            settled,
            version: row.version,
            next_due_ms: row.next_due_ms,
        };
        (receipt, row.next)
    }
}

/// The last op of each key decides (O1); keys come out sorted, so locks are taken in one order.
fn collapse(ops: Vec<StateOp>) -> Result<(Vec<Upsert>, Vec<String>), CycleError> {
    let mut last: std::collections::BTreeMap<String, Option<(String, Option<i64>)>> =
        std::collections::BTreeMap::new();
    for (index, op) in ops.into_iter().enumerate() {
        let refuse = |reason: String| CycleError::StateOp { index, reason };
        let key = op.key();
        if key.contains('\0') {
            return Err(refuse("key holds the character U+0000".to_owned()));
        }
        if key.len() > STATE_KEY_BYTES_MAX {
            return Err(refuse(format!(
                "key is {} bytes long, the limit is {STATE_KEY_BYTES_MAX}",
                key.len()
            )));
        }
        match op {
            StateOp::Delete { key } => {
                last.insert(key, None);
            }
            StateOp::Upsert { key, value, due_ms } => {
                if value.len() > STATE_VALUE_BYTES_MAX {
                    return Err(refuse(format!(
                        "value is {} bytes long, the limit is {STATE_VALUE_BYTES_MAX}",
                        value.len()
                    )));
                }
                json::check_state_value(&value).map_err(|e| refuse(format!("value: {e}")))?;
                last.insert(key, Some((value, due_ms)));
            }
        }
    }
    let mut upserts = Vec::with_capacity(last.len());
    let mut deletes = Vec::new();
    for (key, value) in last {
        match value {
            Some((value, due_ms)) => {
                let window_end = json::window_end(&value);
                upserts.push(Upsert { key, value, window_end, due_ms });
            }
            None => deletes.push(key),
        }
    }
    Ok((upserts, deletes))
}

/// Groups in order of first appearance, items in order within each (P10, E5).
fn group_sinks(emits: Vec<SinkAppend>) -> Vec<SinkGroup> {
    let mut groups: Vec<SinkGroup> = Vec::new();
    let mut by_key: HashMap<(String, String), usize> = HashMap::new();
    for emit in emits {
        let message = NewMessage {
            message_id: emit.message_id,
            transaction_id: emit.transaction_id,
            trace_id: None,
            producer_sub: None,
            payload: emit.payload,
        };
        let key = (emit.queue, emit.partition);
        if let Some(at) = by_key.get(&key) {
            groups[*at].messages.push(message);
            continue;
        }
        groups.push(SinkGroup {
            queue: key.0.clone(),
            partition: key.1.clone(),
            messages: vec![message],
        });
        by_key.insert(key, groups.len() - 1);
    }
    groups
}
