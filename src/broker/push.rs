//! Push: messages into partitions.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::appender::NewMessage;
use super::{AppendError, Broker, Maintenance, Stored};
use crate::db::Error;
use crate::db::queue::{NewPartition, Queue};
use crate::types::id::TenantId;

/// One item of a push.
#[derive(Clone, Debug)]
pub struct PushItem {
    /// Target queue, created if missing.
    pub queue: String,
    /// Target partition, created if missing.
    pub partition: String,
    /// JSON text, kept as it is.
    pub payload: String,
    /// Idempotency key; the minted message id where absent.
    pub transaction_id: Option<String>,
    /// Subject of the producer's token.
    pub producer_sub: Option<String>,
}

/// What became of an item.
#[derive(Clone, Debug)]
pub enum PushOutcome {
    /// Committed, or found as a duplicate.
    Stored(Stored),
    /// Taken into the spool: push maintenance is on.
    Buffered(Uuid),
    /// Not stored anywhere, as far as is known.
    Failed(AppendError),
}

/// An item's outcome with the ids that the wire shows.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// What became of it.
    pub outcome: PushOutcome,
    /// The item's transaction id, the message id where it gave none.
    pub transaction_id: String,
    /// Queue of the item.
    pub queue: String,
}

/// Why a push as a whole failed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The store failed before anything was stored.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Broker {
    /// Stores items; each (queue, partition) commits on its own (data-plane 22).
    ///
    /// # Errors
    /// Only when nothing could be stored at all.
    pub async fn push(
        &self,
        tenant: TenantId,
        items: Vec<PushItem>,
    ) -> Result<Vec<Pushed>, PushError> {
        let inner = &self.inner;
        inner.metrics.requests.with_label_values(&["push"]).inc();
        if self.in_maintenance(Maintenance::Push) {
            return Ok(self.spool(tenant, items).await?);
        }
        struct Group {
            queue: Arc<Queue>,
            partition: NewPartition,
            window_ms: i64,
            messages: Vec<NewMessage>,
            places: Vec<usize>,
        }
        let mut groups: HashMap<(String, String), Group> = HashMap::new();
        let mut out: Vec<Option<Pushed>> = Vec::with_capacity(items.len());
        for (place, item) in items.into_iter().enumerate() {
            let key = (item.queue, item.partition);
            let mut message = NewMessage {
                message_id: None,
                transaction_id: item.transaction_id.clone(),
                trace_id: None,
                producer_sub: item.producer_sub,
                payload: item.payload,
            };
            out.push(Some(Pushed {
                outcome: PushOutcome::Failed(AppendError::Stopping),
                transaction_id: item.transaction_id.unwrap_or_default(),
                queue: key.0.clone(),
            }));
            if let Some(group) = groups.get_mut(&key) {
                message.payload = inner.sealed(&group.queue, message.payload);
                group.messages.push(message);
                group.places.push(place);
                continue;
            }
            let queue =
                inner.directory.queue_ensure(&inner.db, tenant, &key.0, &inner.implicit).await?;
            message.payload = inner.sealed(&queue, message.payload);
            let group = Group {
                partition: NewPartition {
                    queue: queue.no,
                    id: queue.partition_id(&key.1),
                    name: key.1.clone(),
                },
                window_ms: i64::from(queue.options.dedup_window_s) * 1000,
                messages: vec![message],
                places: vec![place],
                queue,
            };
            groups.insert(key, group);
        }
        let mut waiting = Vec::with_capacity(groups.len());
        for group in groups.into_values() {
            let answer = inner.appender.submit(group.partition, group.window_ms, group.messages);
            waiting.push((group.places, answer));
        }
        let mut stored_n = 0;
        for (places, answer) in waiting {
            let answer = answer.await.unwrap_or(Err(AppendError::Stopping));
            for (i, place) in places.into_iter().enumerate() {
                let pushed = out[place].as_mut().expect("every place is filled once");
                match &answer {
                    Ok(stored) => {
                        let stored = stored[i];
                        stored_n += u64::from(!stored.duplicate);
                        if pushed.transaction_id.is_empty() {
                            pushed.transaction_id = stored.message_id.to_string();
                        }
                        pushed.outcome = PushOutcome::Stored(stored);
                    }
                    Err(cause) => pushed.outcome = PushOutcome::Failed(cause.clone()),
                }
            }
        }
        inner.metrics.messages.with_label_values(&["push"]).inc_by(stored_n);
        Ok(out.into_iter().flatten().collect())
    }
}

impl Pushed {
    /// Message id: the stored one, or nil for an item that was not stored.
    #[must_use]
    pub fn message_id(&self) -> Uuid {
        match self.outcome {
            PushOutcome::Stored(stored) => stored.message_id,
            PushOutcome::Buffered(message_id) => message_id,
            PushOutcome::Failed(_) => Uuid::nil(),
        }
    }
}
