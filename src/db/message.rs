//! Messages as operators look at them: listings, one message by its address, who has passed it.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Db, Error};
use crate::log::{Frame, segment};
use crate::types::id::{PartitionId, Pid, TenantId, TxnHash};

/// Which partitions to look at; an absent part is no filter.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Queue.
    pub queue: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Namespace of the queue.
    pub namespace: Option<String>,
    /// Task of the queue.
    pub task: Option<String>,
}

/// A partition with what a message shows of its queue.
#[derive(Clone, Debug)]
pub struct ListedPartition {
    /// Number.
    pub pid: Pid,
    /// Wire id.
    pub id: PartitionId,
    /// Name.
    pub name: String,
    /// Offset of the next message.
    pub next_offset: i64,
    /// Queue.
    pub queue: String,
    /// Namespace of the queue.
    pub namespace: String,
    /// Task of the queue.
    pub task: String,
    /// Options of the queue, as the configure route echoes them.
    pub options: serde_json::Value,
}

/// A stored segment without its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSegment {
    /// Partition.
    pub pid: Pid,
    /// Offset of the first frame.
    pub first_offset: i64,
    /// Number of frames.
    pub n: i32,
    /// Commit time.
    pub created_at: Timestamp,
}

/// A cursor on a partition.
#[derive(Clone, Debug)]
pub struct CursorRow {
    /// Partition.
    pub pid: Pid,
    /// Group.
    pub group: String,
    /// Last settled offset.
    pub committed: i64,
    /// End of the lease, while it is live.
    pub leased_until: Option<Timestamp>,
}

/// Offsets of one partition: first, and end or last.
pub type Stretch = (Pid, i64, i64);

fn columns(stretches: &[Stretch]) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
    (
        stretches.iter().map(|s| s.0.0).collect(),
        stretches.iter().map(|s| s.1).collect(),
        stretches.iter().map(|s| s.2).collect(),
    )
}

impl Db {
    /// Partitions with a message at or after an instant, latest write first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message_partitions(
        &self,
        tenant: TenantId,
        scope: &Scope,
        from: Timestamp,
        most: Option<i64>,
    ) -> Result<Vec<ListedPartition>, Error> {
        let rows = self
            .query(
                include_str!("sql/message_partitions.sql"),
                &[
                    &tenant.0,
                    &scope.queue,
                    &scope.partition,
                    &scope.namespace,
                    &scope.task,
                    &from,
                    &most,
                ],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| ListedPartition {
                pid: Pid(row.get("pid")),
                id: PartitionId(row.get::<_, Uuid>("id")),
                name: row.get("name"),
                next_offset: row.get("next_offset"),
                queue: row.get("queue"),
                namespace: row.get("namespace"),
                task: row.get("task"),
                options: row.get("options"),
            })
            .collect())
    }

    /// The first retained offset committed at or after an instant, for each pair; the next offset
    /// of the partition where nothing is that young.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn offsets_at(&self, pairs: &[(Pid, Timestamp)]) -> Result<Vec<i64>, Error> {
        let pids: Vec<i64> = pairs.iter().map(|p| p.0.0).collect();
        let instants: Vec<Timestamp> = pairs.iter().map(|p| p.1).collect();
        let rows = self.query(include_str!("sql/offsets_at.sql"), &[&pids, &instants]).await?;
        Ok(rows.iter().map(|row| row.get("first_offset")).collect())
    }

    /// The newest segments of stretches whose end is exclusive, newest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message_segments(
        &self,
        stretches: &[Stretch],
        most: i64,
    ) -> Result<Vec<ListedSegment>, Error> {
        let (pids, from, to) = columns(stretches);
        let sql = include_str!("sql/message_segments.sql");
        let rows = self.query(sql, &[&pids, &from, &to, &most]).await?;
        Ok(rows
            .iter()
            .map(|row| ListedSegment {
                pid: Pid(row.get("pid")),
                first_offset: row.get("first_offset"),
                n: row.get("n"),
                created_at: row.get("created_at"),
            })
            .collect())
    }

    /// The frames of segments that are retained: (partition, first offset, frames).
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a segment cannot be read; others when the store fails.
    pub async fn message_frames(
        &self,
        segments: &[(Pid, i64)],
    ) -> Result<Vec<(Pid, i64, Vec<Frame>)>, Error> {
        let pids: Vec<i64> = segments.iter().map(|s| s.0.0).collect();
        let firsts: Vec<i64> = segments.iter().map(|s| s.1).collect();
        let rows = self.query(include_str!("sql/message_payloads.sql"), &[&pids, &firsts]).await?;
        rows.iter()
            .map(|row| {
                let frames = segment::decode(row.get("payload"), row.get("n"))?;
                Ok((Pid(row.get("pid")), row.get("first_offset"), frames))
            })
            .collect()
    }

    /// Where the newest message with that hash stands, at or after an offset.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message_find(
        &self,
        pid: Pid,
        hash: TxnHash,
        from: i64,
    ) -> Result<Option<i64>, Error> {
        let sql = include_str!("sql/message_find.sql");
        let row = self.query_opt(sql, &[&pid.0, &hash.0.as_slice(), &from]).await?;
        Ok(row.map(|row| row.get("found")))
    }

    /// The cursors on partitions, by partition and group.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message_cursors(&self, pids: &[Pid]) -> Result<Vec<CursorRow>, Error> {
        let pids: Vec<i64> = pids.iter().map(|pid| pid.0).collect();
        let rows = self.query(include_str!("sql/message_cursors.sql"), &[&pids]).await?;
        Ok(rows
            .iter()
            .map(|row| CursorRow {
                pid: Pid(row.get("pid")),
                group: row.get("group_name"),
                committed: row.get("committed"),
                leased_until: row.get("leased_until"),
            })
            .collect())
    }

    /// Offsets of dead letters inside stretches whose end is inclusive.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message_dead(&self, stretches: &[Stretch]) -> Result<Vec<(Pid, i64)>, Error> {
        let (pids, from, to) = columns(stretches);
        let rows = self.query(include_str!("sql/message_dead.sql"), &[&pids, &from, &to]).await?;
        Ok(rows.iter().map(|row| (Pid(row.get("pid")), row.get("first_offset"))).collect())
    }
}
