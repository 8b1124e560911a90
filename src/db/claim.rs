//! Claims: leases on the next batch of partitions.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{GroupNo, Pid, QueueNo, TenantId};

/// What to claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Group whose cursors are leased.
    pub group: GroupNo,
    /// Candidates, tried in this order.
    pub pids: Vec<i64>,
    /// Messages in total.
    pub batch: i32,
    /// Partitions at most.
    pub lanes: i32,
    /// Frame bytes per partition at which the claim stops taking segments.
    pub bytes: i64,
    /// Id of the lease.
    pub lease: Uuid,
    /// Length of the lease, ms; `None` for the queue's lease time.
    pub lease_ms: Option<i64>,
    /// Settle at delivery instead of leasing.
    pub auto_ack: bool,
    /// Only the newest visible message of each partition.
    pub conflate: bool,
}

/// One stored segment.
#[derive(Clone, Debug)]
pub struct StoredSegment {
    /// Offset of its first frame.
    pub first_offset: i64,
    /// Number of frames.
    pub n: i32,
    /// Commit time.
    pub created_at: Timestamp,
    /// Stored bytes.
    pub payload: Vec<u8>,
}

/// A leased batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// First offset above the cursor.
    pub from_offset: i64,
    /// Last offset of the batch.
    pub batch_end: i64,
    /// Next offset of the partition at the claim.
    pub next_offset: i64,
    /// How often the batch at this place was claimed, from 1.
    pub attempt: i32,
    /// End of the lease; `None` when settled at delivery.
    pub lease_expires_at: Option<Timestamp>,
    /// Length of the lease, ms; `None` when settled at delivery.
    pub lease_ms: Option<i64>,
    /// Segments that hold the batch, ascending; the first and last may reach beyond it.
    pub segments: Vec<StoredSegment>,
}

/// What became of one candidate.
#[derive(Clone, Debug)]
pub enum LaneOutcome {
    /// Leased (or settled, with `auto_ack`).
    Claimed(Batch),
    /// Nothing above the cursor, or no such partition.
    Empty,
    /// Somebody holds it, or its messages are not visible yet; ask again in so many ms, if known.
    Later(Option<i64>),
    /// The group is deleted: whoever wants it registers it anew.
    Gone,
}

/// One candidate of a claim.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Partition.
    pub pid: Pid,
    /// What became of it.
    pub outcome: LaneOutcome,
}

/// Reads the rows of `log_claim_v1`.
pub(super) fn lanes_of<'r>(rows: impl Iterator<Item = (Pid, &'r Row)>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for (pid, row) in rows {
        let outcome: &str = row.get("outcome");
        if outcome != "claimed" {
            let outcome = match outcome {
                "empty" | "missing" => LaneOutcome::Empty,
                "gone" => LaneOutcome::Gone,
                _ => LaneOutcome::Later(row.get("retry_ms")),
            };
            lanes.push(Lane { pid, outcome });
            continue;
        }
        let segment = StoredSegment {
            first_offset: row.get("seg_first"),
            n: row.get("seg_n"),
            created_at: row.get("seg_at"),
            payload: row.get("seg_payload"),
        };
        let batch_end = row.get("batch_end");
        if let Some(Lane { pid: last, outcome: LaneOutcome::Claimed(batch) }) = lanes.last_mut()
            && *last == pid
        {
            batch.batch_end = batch_end;
            batch.segments.push(segment);
            continue;
        }
        let batch = Batch {
            from_offset: row.get("from_offset"),
            batch_end,
            next_offset: row.get("next_offset"),
            attempt: row.get("attempt"),
            lease_expires_at: row.get("lease_expires_at"),
            lease_ms: row.get("retry_ms"),
            segments: vec![segment],
        };
        lanes.push(Lane { pid, outcome: LaneOutcome::Claimed(batch) });
    }
    lanes
}

impl Db {
    /// Leases the next batch of each candidate until the budget is used, in one round trip.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn claim(&self, c: &Claim) -> Result<Vec<Lane>, Error> {
        let relaxed = true;
        let rows = super::retried(async || {
            self.query(
                include_str!("sql/claim.sql"),
                &[
                    &c.group.0,
                    &c.pids,
                    &c.batch,
                    &c.lanes,
                    &c.bytes,
                    &c.lease,
                    &c.lease_ms,
                    &c.auto_ack,
                    &c.conflate,
                    &relaxed,
                ],
            )
            .await
        })
        .await?;
        Ok(lanes_of(rows.iter().map(|row| (Pid(row.get("pid")), row))))
    }

    /// Partitions on which the group has something to take; for a held one the ms its lease lasts.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn lanes(
        &self,
        queue: QueueNo,
        group: GroupNo,
        most: i64,
    ) -> Result<Vec<(Pid, Option<i64>)>, Error> {
        let rows = self.query(include_str!("sql/lanes.sql"), &[&queue.0, &group.0, &most]).await?;
        Ok(rows.iter().map(|row| (Pid(row.get("pid")), row.get("wait_ms"))).collect())
    }

    /// Extends a live lease to at least `seconds` from now; gives the new ends.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn lease_extend(
        &self,
        tenant: TenantId,
        lease: Uuid,
        pids: Option<&[i64]>,
        seconds: i64,
    ) -> Result<Vec<Timestamp>, Error> {
        let rows = self
            .query(include_str!("sql/lease_extend.sql"), &[&lease, &pids, &seconds, &tenant.0])
            .await?;
        Ok(rows.iter().map(|row| row.get("lease_expires_at")).collect())
    }

    /// Gives a lease back; the batch is claimable at once and no retry is charged.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn lease_release(
        &self,
        lease: Uuid,
        pids: &[i64],
        delivered: bool,
    ) -> Result<Vec<Pid>, Error> {
        let rows =
            self.query(include_str!("sql/lease_release.sql"), &[&lease, &pids, &delivered]).await?;
        Ok(rows.iter().map(|row| Pid(row.get("pid"))).collect())
    }
}
