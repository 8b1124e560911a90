//! Settlement of messages that acks address by transaction id.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{PartitionId, QueueNo, TxnHash};

/// What an ack says of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStatus {
    /// Done.
    Completed,
    /// Failed: charged to the retry budget.
    Failed,
    /// Deliver again, free of charge.
    Retry,
    /// Dead-letter now.
    DeadLetter,
}

impl AckStatus {
    fn code(self) -> i16 {
        match self {
            Self::Completed => 1,
            Self::Failed => 2,
            Self::Retry => 3,
            Self::DeadLetter => 4,
        }
    }
}

/// The snapshot of a message that is to be dead-lettered.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Offset of the message.
    pub offset: i64,
    /// Id of the record.
    pub id: Uuid,
    /// The message.
    pub frame: crate::log::Frame,
    /// When it was committed.
    pub created_at: Timestamp,
    /// Why.
    pub reason: String,
}

/// Acks of one (partition, group, lease).
#[derive(Clone, Debug)]
pub struct AckGroup {
    /// Wire id of the partition.
    pub partition: PartitionId,
    /// Consumer group.
    pub group: String,
    /// Lease that must be live; `None` checks none.
    pub lease: Option<Uuid>,
    /// (message, status), in request order.
    pub items: Vec<(TxnHash, AckStatus)>,
    /// Message to dead-letter, once the store has asked for it.
    pub dead: Option<Snapshot>,
}

/// What became of one ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckOutcome {
    /// Whether the instruction was carried out.
    pub success: bool,
    /// Why not.
    pub error: Option<String>,
    /// A completed ack at or below the cursor.
    pub noop: bool,
    /// The message was dead-lettered.
    pub dead: bool,
}

/// What became of an [`AckGroup`].
#[derive(Clone, Debug, Default)]
pub struct GroupOutcome {
    /// One entry an item; empty while the store wants a snapshot.
    pub items: Vec<AckOutcome>,
    /// The partition is claimable again.
    pub released: bool,
    /// The store wants the message at this offset before it settles anything of the group.
    pub need_dead: Option<i64>,
    /// Queue of the partition.
    pub queue: Option<QueueNo>,
    /// Offsets that the cursor moved.
    pub done: i64,
    /// Positions retired without delivery, when a conflating lease ended.
    pub retired: Option<i64>,
}

impl Db {
    /// Settles groups, each on its own, in one transaction.
    ///
    /// # Errors
    /// When the store fails; nothing is settled then, or the outcome is unknown.
    pub async fn settle(&self, groups: &[AckGroup]) -> Result<Vec<GroupOutcome>, Error> {
        // Lock order: cursors ascending.
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|i| (groups[*i].partition.pid(), groups[*i].group.clone()));
        let sorted: Vec<&AckGroup> = order.iter().map(|i| &groups[*i]).collect();
        let pid: Vec<i64> = sorted.iter().map(|g| g.partition.pid().0).collect();
        let id: Vec<Uuid> = sorted.iter().map(|g| g.partition.0).collect();
        let name: Vec<&str> = sorted.iter().map(|g| g.group.as_str()).collect();
        let lease: Vec<Option<Uuid>> = sorted.iter().map(|g| g.lease).collect();
        let dead = || sorted.iter().map(|g| g.dead.as_ref());
        let dead_offset: Vec<Option<i64>> = dead().map(|d| d.map(|d| d.offset)).collect();
        let dead_id: Vec<Option<Uuid>> = dead().map(|d| d.map(|d| d.id)).collect();
        let dead_msg: Vec<Option<Uuid>> = dead().map(|d| d.map(|d| d.frame.message_id)).collect();
        let dead_txn: Vec<Option<String>> =
            dead().map(|d| d.map(|d| d.frame.transaction_id())).collect();
        let dead_payload: Vec<Option<&[u8]>> =
            dead().map(|d| d.map(|d| d.frame.payload.as_bytes())).collect();
        let dead_sub: Vec<Option<&str>> =
            dead().map(|d| d.and_then(|d| d.frame.producer_sub.as_deref())).collect();
        let dead_trace: Vec<Option<Uuid>> =
            dead().map(|d| d.and_then(|d| d.frame.trace_id)).collect();
        let dead_error: Vec<Option<&str>> = dead().map(|d| d.map(|d| d.reason.as_str())).collect();
        let dead_at: Vec<Option<Timestamp>> = dead().map(|d| d.map(|d| d.created_at)).collect();
        let (mut item_group, mut item_hash, mut item_status) = (vec![], vec![], vec![]);
        let mut place = Vec::new();
        for (g, group) in (1_i32..).zip(&sorted) {
            for (k, (hash, status)) in group.items.iter().enumerate() {
                item_group.push(g);
                item_hash.push(hash.0.as_slice());
                item_status.push(status.code());
                place.push(k);
            }
        }
        let rows = super::retried(async || {
            self.query(
                include_str!("sql/settle.sql"),
                &[
                    &pid,
                    &id,
                    &name,
                    &lease,
                    &dead_offset,
                    &dead_id,
                    &dead_msg,
                    &dead_txn,
                    &dead_payload,
                    &dead_sub,
                    &dead_trace,
                    &dead_error,
                    &dead_at,
                    &item_group,
                    &item_hash,
                    &item_status,
                ],
            )
            .await
        })
        .await?;
        let mut out = vec![GroupOutcome::default(); groups.len()];
        for row in &rows {
            let grp: i32 = row.get("grp");
            let at = order[usize::try_from(grp - 1).expect("groups are numbered from 1")];
            let outcome = &mut out[at];
            let Some(item) = row.get::<_, Option<i32>>("item") else {
                outcome.released = row.get("released");
                outcome.need_dead = row.get("need_dead");
                outcome.queue = row.get::<_, Option<i64>>("queue_no").map(QueueNo);
                outcome.done = row.get("done");
                outcome.retired = row.get("retired");
                continue;
            };
            let k = place[usize::try_from(item - 1).expect("items are numbered from 1")];
            outcome.items.resize(groups[at].items.len(), AckOutcome::default());
            outcome.items[k] = AckOutcome {
                success: row.get("success"),
                error: row.get("error"),
                noop: row.get("noop"),
                dead: row.get("dead"),
            };
        }
        Ok(out)
    }
}
