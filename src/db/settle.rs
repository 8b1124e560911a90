//! Settlement of messages that acks address by transaction id.

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::append::StoredFrame;
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

/// Reason of a dead letter for which nobody gave one.
const DEFAULT_REASON: &str = "no reason given";

impl Snapshot {
    /// The snapshot of a stored message; the reason is that of its own ack, else the first one
    /// given in the group, else a fixed text. `reasons` go with the group's items.
    #[must_use]
    pub fn of(
        group: &AckGroup,
        offset: i64,
        stored: StoredFrame,
        reasons: &[Option<String>],
    ) -> Self {
        let hash = TxnHash::of(&stored.frame.transaction_id());
        let given = |reason: &Option<String>| reason.clone().filter(|text| !text.is_empty());
        let own = group.items.iter().zip(reasons).find(|((of, _), _)| *of == hash);
        let reason = own
            .and_then(|(_, reason)| given(reason))
            .or_else(|| reasons.iter().find_map(given))
            .unwrap_or_else(|| DEFAULT_REASON.to_owned());
        let (frame, created_at) = (stored.frame, stored.created_at);
        Self { offset, id: Uuid::now_v7(), frame, created_at, reason }
    }
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

/// The parameters of `log_settle_v1`, cursors ascending: the lock order.
struct Columns<'g> {
    order: Vec<usize>,
    place: Vec<usize>,
    pid: Vec<i64>,
    id: Vec<Uuid>,
    name: Vec<&'g str>,
    lease: Vec<Option<Uuid>>,
    dead_offset: Vec<Option<i64>>,
    dead_id: Vec<Option<Uuid>>,
    dead_message: Vec<Option<Uuid>>,
    dead_txn: Vec<Option<String>>,
    dead_payload: Vec<Option<&'g [u8]>>,
    dead_sub: Vec<Option<&'g str>>,
    dead_trace: Vec<Option<Uuid>>,
    dead_error: Vec<Option<&'g str>>,
    dead_at: Vec<Option<Timestamp>>,
    item_group: Vec<i32>,
    item_hash: Vec<&'g [u8]>,
    item_status: Vec<i16>,
}

impl<'g> Columns<'g> {
    fn new(groups: &'g [AckGroup]) -> Self {
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|i| (groups[*i].partition.pid(), groups[*i].group.clone()));
        let sorted: Vec<&AckGroup> = order.iter().map(|i| &groups[*i]).collect();
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
        let dead = || sorted.iter().map(|g| g.dead.as_ref());
        Self {
            place,
            pid: sorted.iter().map(|g| g.partition.pid().0).collect(),
            id: sorted.iter().map(|g| g.partition.0).collect(),
            name: sorted.iter().map(|g| g.group.as_str()).collect(),
            lease: sorted.iter().map(|g| g.lease).collect(),
            dead_offset: dead().map(|d| d.map(|d| d.offset)).collect(),
            dead_id: dead().map(|d| d.map(|d| d.id)).collect(),
            dead_message: dead().map(|d| d.map(|d| d.frame.message_id)).collect(),
            dead_txn: dead().map(|d| d.map(|d| d.frame.transaction_id())).collect(),
            dead_payload: dead().map(|d| d.map(|d| d.frame.payload.as_bytes())).collect(),
            dead_sub: dead().map(|d| d.and_then(|d| d.frame.producer_sub.as_deref())).collect(),
            dead_trace: dead().map(|d| d.and_then(|d| d.frame.trace_id)).collect(),
            dead_error: dead().map(|d| d.map(|d| d.reason.as_str())).collect(),
            dead_at: dead().map(|d| d.map(|d| d.created_at)).collect(),
            item_group,
            item_hash,
            item_status,
            order,
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 16] {
        [
            &self.pid,
            &self.id,
            &self.name,
            &self.lease,
            &self.dead_offset,
            &self.dead_id,
            &self.dead_message,
            &self.dead_txn,
            &self.dead_payload,
            &self.dead_sub,
            &self.dead_trace,
            &self.dead_error,
            &self.dead_at,
            &self.item_group,
            &self.item_hash,
            &self.item_status,
        ]
    }

    /// Reads the rows back into the order of the request.
    fn outcomes(&self, groups: &[AckGroup], rows: &[Row]) -> Vec<GroupOutcome> {
        let mut out = vec![GroupOutcome::default(); groups.len()];
        for row in rows {
            let grp: i32 = row.get("grp");
            let at = self.order[usize::try_from(grp - 1).expect("groups are numbered from 1")];
            let outcome = &mut out[at];
            let Some(item) = row.get::<_, Option<i32>>("item") else {
                outcome.released = row.get("released");
                outcome.need_dead = row.get("need_dead");
                outcome.queue = row.get::<_, Option<i64>>("queue_no").map(QueueNo);
                outcome.done = row.get("done");
                outcome.retired = row.get("retired");
                continue;
            };
            let k = self.place[usize::try_from(item - 1).expect("items are numbered from 1")];
            outcome.items.resize(groups[at].items.len(), AckOutcome::default());
            outcome.items[k] = AckOutcome {
                success: row.get("success"),
                error: row.get("error"),
                noop: row.get("noop"),
                dead: row.get("dead"),
            };
        }
        out
    }
}

/// Settles groups inside a transaction of the caller.
pub(super) async fn settle_in_txn(
    client: &impl GenericClient,
    groups: &[AckGroup],
) -> Result<Vec<GroupOutcome>, Error> {
    let columns = Columns::new(groups);
    let statement = client.prepare_cached(include_str!("sql/settle.sql")).await?;
    let rows = client.query(&statement, &columns.params()).await?;
    Ok(columns.outcomes(groups, &rows))
}

impl Db {
    /// Settles groups, each on its own, in one transaction.
    ///
    /// # Errors
    /// When the store fails; nothing is settled then, or the outcome is unknown.
    pub async fn settle(&self, groups: &[AckGroup]) -> Result<Vec<GroupOutcome>, Error> {
        let columns = Columns::new(groups);
        let params = columns.params();
        let rows = super::retried(|| self.query(include_str!("sql/settle.sql"), &params))
            .await
            .inspect_err(|cause| self.doubt(cause))?;
        Ok(columns.outcomes(groups, &rows))
    }
}
