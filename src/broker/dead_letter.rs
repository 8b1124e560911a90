//! Dead letters: reading, removal, and replay at the tail of a log.

use uuid::Uuid;

use super::appender::{NewMessage, Packer, Place};
use super::{Broker, Stored};
use crate::db::append::Appended;
use crate::db::dead_letter::{DeadLetterFilter, DeadLetterRow, Replayed};
use crate::db::queue::NewPartition;
use crate::db::{Error, Refusal};
use crate::types::id::{DEFAULT_PARTITION, PartitionId, TenantId, TxnHash};
use crate::types::limits::RETRIES_MAX;

/// Where a dead letter goes; an absent half is that of the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Queue, created if missing.
    pub queue: Option<String>,
    /// Partition, created if missing.
    pub partition: Option<String>,
}

/// A dead letter that was replayed, or that stays because its message is there already.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The record.
    pub record: DeadLetterRow,
    /// Queue that holds the message.
    pub queue: String,
    /// Partition that holds the message.
    pub partition: String,
    /// Transaction id of the message: the same for every replay of one record.
    pub transaction_id: String,
    /// Where the message stands. With `duplicate` nothing was written and the record stays.
    pub stored: Stored,
}

/// Why a dead letter was not replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No such record of the tenant, or somebody replayed it before.
    #[error("there is no such dead letter")]
    Gone,
    /// The store failed. Where its answer was lost, the replay may stand.
    #[error(transparent)]
    Store(#[from] Error),
}

impl ReplayError {
    /// Whether the replay may have happened all the same.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Store(Error::Unavailable(_) | Error::Timeout(_)))
    }
}

impl Broker {
    /// Dead letters, newest failure first, their payloads opened.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letters(
        &self,
        tenant: TenantId,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetterRow>, Error> {
        let mut rows = self.inner.db.dead_letter_list(tenant, filter).await?;
        for row in &mut rows {
            row.payload = self.inner.seal.open(std::mem::take(&mut row.payload));
        }
        Ok(rows)
    }

    /// Removes the dead letters of a message address, those of every group; how many there were.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_delete(
        &self,
        tenant: TenantId,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<usize, Error> {
        if self.owned(tenant, partition).await?.is_none() {
            return Ok(0);
        }
        self.inner.db.dead_letter_delete(partition.pid(), transaction_id).await
    }

    /// Replays the newest dead letter of a message address where the message was.
    ///
    /// # Errors
    /// Any [`ReplayError`].
    pub async fn dead_letter_retry(
        &self,
        tenant: TenantId,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Replay, ReplayError> {
        if self.owned(tenant, partition).await?.is_none() {
            return Err(ReplayError::Gone);
        }
        let newest =
            self.inner.db.dead_letter_newest(tenant, partition.pid(), transaction_id).await?;
        let record = newest.ok_or(ReplayError::Gone)?;
        self.dead_letter_replay(tenant, record.id, Destination::default()).await
    }

    /// Appends the message of a dead letter at the tail of its partition or of another one, and
    /// removes the record, in one transaction. A repeated request appends nothing again.
    ///
    /// # Errors
    /// Any [`ReplayError`].
    pub async fn dead_letter_replay(
        &self,
        tenant: TenantId,
        id: Uuid,
        to: Destination,
    ) -> Result<Replay, ReplayError> {
        // A task of its own: a caller that goes away must not cost the wake-ups after the commit.
        let broker = self.clone();
        let task =
            self.inner.tasks.spawn(async move { broker.replay_to_end(tenant, id, to).await });
        task.await.unwrap_or_else(|cause| std::panic::resume_unwind(cause.into_panic()))
    }

    async fn replay_to_end(
        &self,
        tenant: TenantId,
        id: Uuid,
        to: Destination,
    ) -> Result<Replay, ReplayError> {
        let inner = &self.inner;
        let record = inner.db.dead_letter_find(tenant, id).await?.ok_or(ReplayError::Gone)?;
        let queue = to.queue.unwrap_or_else(|| record.queue.clone());
        let own = record.partition.as_ref().map(|(_, name)| name.clone());
        let partition = to.partition.or(own).unwrap_or_else(|| DEFAULT_PARTITION.to_owned());
        let transaction_id = format!("dlq:{id}");
        let mut replay = Replay {
            record,
            queue,
            partition,
            transaction_id,
            stored: Stored { message_id: Uuid::nil(), offset: 0, duplicate: true },
        };
        for _ in 0..=RETRIES_MAX {
            if let Some(stored) = self.replay_once(tenant, &replay).await? {
                replay.stored = stored;
                return Ok(replay);
            }
        }
        let text = "the partition changed during every attempt".to_owned();
        Err(Error::Refused { refusal: Refusal::DedupStale, text }.into())
    }

    /// One attempt; `None` when it must be repeated.
    async fn replay_once(
        &self,
        tenant: TenantId,
        replay: &Replay,
    ) -> Result<Option<Stored>, ReplayError> {
        let inner = &self.inner;
        let queue =
            inner.directory.queue_ensure(&inner.db, tenant, &replay.queue, &inner.implicit).await?;
        let id = queue.partition_id(&replay.partition);
        let target = NewPartition { queue: queue.no, id, name: replay.partition.clone() };
        let pid = target.pid();
        let window_ms = i64::from(queue.options.dedup_window_s) * 1000;
        let hash = TxnHash::of(&replay.transaction_id);
        let message = NewMessage {
            message_id: None,
            transaction_id: Some(replay.transaction_id.clone()),
            trace_id: None,
            producer_sub: None,
            payload: inner.sealed(&queue, inner.seal.open(replay.record.payload.clone())),
        };
        inner.dedup_refresh(&[(pid, window_ms)]).await?;
        let known = inner.dedup_known(pid, window_ms);
        if let Some(original) = inner.find_original(pid, hash, &message, window_ms).await? {
            let (message_id, offset) = original.resolve(&[]);
            return Ok(Some(Stored { message_id, offset, duplicate: true }));
        }
        let mut packer = Packer::default();
        let Place::New { message_id, .. } = packer.push(&message, Some(hash)) else {
            unreachable!("a packer only makes new places")
        };
        let append = packer.finish(pid, known, window_ms).pop().expect("it holds one message");
        match inner.db.dead_letter_replay(tenant, replay.record.id, &append).await? {
            Replayed::Gone => Err(ReplayError::Gone),
            Replayed::Found(Appended::At { base_offset, created_at }) => {
                inner.dedup_appended(&append, base_offset, created_at);
                inner.appended(queue.no, pid);
                inner.metrics.messages.with_label_values(&["push"]).inc();
                Ok(Some(Stored { message_id, offset: base_offset, duplicate: false }))
            }
            Replayed::Found(Appended::Stale) => {
                inner.dedup.forget(pid);
                Ok(None)
            }
            Replayed::Found(Appended::Missing) => {
                inner.directory.forget_partition(id);
                if let Err(cause) = inner.db.partitions_ensure(&[target]).await {
                    // The queue itself may be gone: the next attempt looks it up again.
                    inner.directory.forget_queue(queue.no);
                    if !matches!(cause, Error::Constraint(..)) {
                        return Err(cause.into());
                    }
                }
                Ok(None)
            }
        }
    }

    /// The partition, if it is the tenant's.
    pub(super) async fn owned(
        &self,
        tenant: TenantId,
        partition: PartitionId,
    ) -> Result<Option<std::sync::Arc<super::Partition>>, Error> {
        let found = self.inner.directory.partition(&self.inner.db, partition).await?;
        Ok(found.filter(|found| found.queue.tenant == tenant))
    }
}
