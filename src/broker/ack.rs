//! Ack: settlement of messages by transaction id.

use std::collections::HashMap;

use uuid::Uuid;

use super::Broker;
use crate::db::Error;
use crate::db::settle::{AckGroup, AckStatus, GroupOutcome, Snapshot};
use crate::types::id::{PartitionId, TenantId, TxnHash};

/// Rounds in which the store may ask for the snapshot of a message.
const ROUNDS_MAX: usize = 8;

/// One ack.
#[derive(Clone, Debug)]
pub struct Ack {
    /// Message address.
    pub transaction_id: String,
    /// Partition; `None` for a malformed id.
    pub partition: Option<PartitionId>,
    /// What is said of the message.
    pub status: AckStatus,
    /// Cursor to move.
    pub group: String,
    /// Lease that must be live; a malformed one never is.
    pub lease: Option<Uuid>,
    /// Reason kept if this nack dead-letters.
    pub error: Option<String>,
}

/// What became of an ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckResult {
    /// Whether the instruction was carried out.
    pub success: bool,
    /// Why not.
    pub error: Option<String>,
    /// The partition is claimable again.
    pub released: bool,
    /// This message was dead-lettered.
    pub dead: bool,
    /// Nothing changed: it was settled before.
    pub noop: bool,
    /// On the item that closed a conflating lease: positions retired without delivery.
    pub conflated: Option<i64>,
}

/// Why acks as a whole failed.
#[derive(Debug, thiserror::Error)]
pub enum AckError {
    /// The store failed; nothing was settled, or the outcome is unknown.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Broker {
    /// Settles messages; groups of (partition, lease) are independent of each other.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn ack(&self, tenant: TenantId, acks: Vec<Ack>) -> Result<Vec<AckResult>, AckError> {
        // A task of its own: a caller that goes away must not cost the wake-ups after the commit.
        let broker = self.clone();
        let task = self.inner.tasks.spawn(async move { broker.ack_to_end(tenant, acks).await });
        task.await.unwrap_or_else(|cause| std::panic::resume_unwind(cause.into_panic()))
    }

    async fn ack_to_end(
        &self,
        tenant: TenantId,
        acks: Vec<Ack>,
    ) -> Result<Vec<AckResult>, AckError> {
        let inner = &self.inner;
        inner.metrics.requests.with_label_values(&["ack"]).inc();
        let mut results = vec![AckResult::default(); acks.len()];
        let mut groups: Vec<AckGroup> = Vec::new();
        let mut places: Vec<Vec<usize>> = Vec::new();
        let mut by_key: HashMap<(PartitionId, String, Option<Uuid>), usize> = HashMap::new();
        for (place, ack) in acks.iter().enumerate() {
            let Some(partition) = ack.partition else {
                results[place].error = Some("malformed partitionId".to_owned());
                continue;
            };
            let owned = inner
                .directory
                .partition(&inner.db, partition)
                .await?
                .is_some_and(|p| p.queue.tenant == tenant);
            if !owned {
                results[place].error = Some("consumer not found".to_owned());
                continue;
            }
            let key = (partition, ack.group.clone(), ack.lease);
            let at = *by_key.entry(key).or_insert_with(|| {
                groups.push(AckGroup {
                    partition,
                    group: ack.group.clone(),
                    lease: ack.lease,
                    items: Vec::new(),
                    dead: None,
                });
                places.push(Vec::new());
                groups.len() - 1
            });
            groups[at].items.push((TxnHash::of(&ack.transaction_id), ack.status));
            places[at].push(place);
        }
        if groups.is_empty() {
            return Ok(results);
        }

        let mut open: Vec<usize> = (0..groups.len()).collect();
        for _ in 0..ROUNDS_MAX {
            let call: Vec<AckGroup> = open.iter().map(|at| groups[*at].clone()).collect();
            let outcomes = inner.db.settle(&call).await?;
            let mut again = Vec::new();
            for (at, outcome) in open.into_iter().zip(outcomes) {
                if let Some(offset) = outcome.need_dead {
                    groups[at].dead =
                        self.snapshot(&groups[at], offset, &acks, &places[at]).await?;
                    if groups[at].dead.is_some() {
                        again.push(at);
                    }
                    continue;
                }
                self.settled(&groups[at], &outcome);
                fill(&mut results, &places[at], outcome);
            }
            open = again;
            if open.is_empty() {
                break;
            }
        }
        for place in open.iter().flat_map(|at| &places[*at]) {
            results[*place].error = Some("the message could not be dead-lettered".to_owned());
        }
        let good = results.iter().filter(|r| r.success).count() as u64;
        inner.metrics.messages.with_label_values(&["ack"]).inc_by(good);
        inner.metrics.ack_failed.inc_by(results.len() as u64 - good);
        Ok(results)
    }

    fn settled(&self, group: &AckGroup, outcome: &GroupOutcome) {
        if let (true, Some(queue)) = (outcome.released, outcome.queue) {
            self.inner.released(queue, &group.group, group.partition.pid());
        }
        let dead = outcome.items.iter().filter(|item| item.dead).count() as u64;
        self.inner.metrics.dead_letters.inc_by(dead);
    }

    /// Reads the message that the store wants to dead-letter.
    async fn snapshot(
        &self,
        group: &AckGroup,
        offset: i64,
        acks: &[Ack],
        places: &[usize],
    ) -> Result<Option<Snapshot>, Error> {
        let pid = group.partition.pid();
        let Some(stored) = self.inner.db.frame_at(pid, offset, 0).await? else { return Ok(None) };
        let reasons: Vec<_> = places.iter().map(|place| acks[*place].error.clone()).collect();
        Ok(Some(Snapshot::of(group, offset, stored, &reasons)))
    }
}

fn fill(results: &mut [AckResult], places: &[usize], outcome: GroupOutcome) {
    for (place, item) in places.iter().zip(outcome.items) {
        results[*place] = AckResult {
            success: item.success,
            error: item.error,
            released: outcome.released && item.success,
            dead: item.dead,
            noop: item.noop,
            conflated: None,
        };
    }
    if let Some(retired) = outcome.retired
        && let Some(last) = places.iter().rev().find(|p| results[**p].success && !results[**p].noop)
    {
        results[*last].conflated = Some(retired);
    }
}
