//! Consumer groups as operators see and move them.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::group::Start;
use super::{Db, Error};
use crate::types::id::{GroupNo, PartitionId, Pid, QueueNo, TenantId};

/// A group on a queue.
#[derive(Clone, Debug)]
pub struct GroupSummary {
    /// Group.
    pub name: String,
    /// Queue.
    pub queue: String,
    /// Stored start: `all`, `new` or `from`.
    pub mode: String,
    /// Instant of a start in mode `from`.
    pub start_at: Option<Timestamp>,
    /// When the group registered.
    pub created_at: Timestamp,
    /// Whether the group takes only the newest message of a partition.
    pub conflation: bool,
    /// Partitions with a cursor.
    pub cursors: i64,
    /// Partitions with something left.
    pub lagging: i64,
    /// Messages left.
    pub lag: i64,
    /// Age of the oldest one left, s.
    pub lag_s: i64,
    /// Messages settled so far.
    pub total_consumed: i64,
}

/// A cursor of a group.
#[derive(Clone, Debug)]
pub struct GroupCursor {
    /// Queue.
    pub queue: String,
    /// Whether the group takes only the newest message of a partition.
    pub conflation: bool,
    /// Partition.
    pub partition: String,
    /// Messages left.
    pub lag: i64,
    /// Age of the oldest one left, s.
    pub lag_s: i64,
    /// Whether somebody holds a batch.
    pub leased: bool,
    /// Messages settled so far.
    pub total_consumed: i64,
    /// Last settlement.
    pub last_consumed_at: Option<Timestamp>,
}

/// A cursor that is behind.
#[derive(Clone, Debug)]
pub struct LaggingCursor {
    /// Group.
    pub group: String,
    /// Queue.
    pub queue: String,
    /// Partition.
    pub partition: String,
    /// Wire id of the partition.
    pub partition_id: PartitionId,
    /// Messages left.
    pub lag: i64,
    /// Age of the oldest one left, s.
    pub lag_s: i64,
    /// When that one was committed.
    pub oldest_at: Timestamp,
    /// Last settlement.
    pub last_consumed_at: Option<Timestamp>,
}

/// A move of cursors.
#[derive(Clone, Debug)]
pub struct Seek {
    /// Queue.
    pub queue: QueueNo,
    /// Group, registered if it is not.
    pub group: String,
    /// The registration of a group that has none.
    pub start: Start,
    /// One partition; `None` for all.
    pub partition: Option<Pid>,
    /// First message to deliver is the first one committed at or after it; `None`: past the end.
    pub to: Option<Timestamp>,
}

impl Db {
    /// Every registration of a tenant, by group and queue.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_list(&self, tenant: TenantId) -> Result<Vec<GroupSummary>, Error> {
        let rows = self.query(include_str!("sql/group_list.sql"), &[&tenant.0]).await?;
        Ok(rows
            .iter()
            .map(|row| GroupSummary {
                name: row.get("name"),
                queue: row.get("queue"),
                mode: row.get("mode"),
                start_at: row.get("start_at"),
                created_at: row.get("created_at"),
                conflation: row.get("conflation"),
                cursors: row.get("cursors"),
                lagging: row.get("lagging"),
                lag: row.get("lag"),
                lag_s: row.get("lag_s"),
                total_consumed: row.get("total_consumed"),
            })
            .collect())
    }

    /// The cursors of a group, by queue and partition.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_detail(
        &self,
        tenant: TenantId,
        group: &str,
    ) -> Result<Vec<GroupCursor>, Error> {
        let rows = self.query(include_str!("sql/group_detail.sql"), &[&tenant.0, &group]).await?;
        Ok(rows
            .iter()
            .map(|row| GroupCursor {
                queue: row.get("queue"),
                conflation: row.get("conflation"),
                partition: row.get("partition_name"),
                lag: row.get("lag"),
                lag_s: row.get("lag_s"),
                leased: row.get("leased"),
                total_consumed: row.get("total_consumed"),
                last_consumed_at: row.get("last_consumed_at"),
            })
            .collect())
    }

    /// Cursors whose oldest message left is older than so many seconds, worst first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_lagging(
        &self,
        tenant: TenantId,
        more_than_s: i64,
    ) -> Result<Vec<LaggingCursor>, Error> {
        let sql = include_str!("sql/group_lagging.sql");
        let rows = self.query(sql, &[&tenant.0, &more_than_s]).await?;
        Ok(rows
            .iter()
            .map(|row| LaggingCursor {
                group: row.get("group_name"),
                queue: row.get("queue"),
                partition: row.get("partition_name"),
                partition_id: PartitionId(row.get::<_, Uuid>("partition_id")),
                lag: row.get("lag"),
                lag_s: row.get("lag_s"),
                oldest_at: row.get("oldest_at"),
                last_consumed_at: row.get("last_consumed_at"),
            })
            .collect())
    }

    /// Removes the cursors of a group, on one queue or on all; gives those that were there.
    ///
    /// With `registration` the group itself goes too. Otherwise the stored start sets new cursors
    /// in the same transaction, so that no claim sees the group without them: in mode `new` past
    /// what is there, in mode `from` at its instant; mode `all` needs none.
    ///
    /// # Errors
    /// When the store fails; nothing is removed then.
    pub async fn group_remove(
        &self,
        tenant: TenantId,
        group: &str,
        queue: Option<&str>,
        registration: bool,
    ) -> Result<Vec<(QueueNo, Pid)>, Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let txn = client.transaction().await?;
            let lock = include_str!("sql/group_lock.sql");
            let groups = txn.query(lock, &[&tenant.0, &group, &queue]).await?;
            let numbers: Vec<i64> = groups.iter().map(|row| row.get("group_no")).collect();
            if registration {
                txn.query(include_str!("sql/groups_drop.sql"), &[&numbers]).await?;
            }
            let gone = txn.query(include_str!("sql/cursors_delete.sql"), &[&numbers]).await?;
            let mut queues = HashMap::new();
            for row in &groups {
                let (no, queue): (i64, i64) = (row.get("group_no"), row.get("queue_no"));
                queues.insert(no, QueueNo(queue));
                let to: Option<Timestamp> = match row.get("mode") {
                    "from" => row.get("start_at"),
                    "new" => None,
                    _ => continue,
                };
                if !registration {
                    let ends = ends_in_txn(&txn, QueueNo(queue), None).await?;
                    put_in_txn(&txn, GroupNo(no), &ends, to).await?;
                }
            }
            txn.commit().await?;
            let queue_of = |row: &tokio_postgres::Row| queues[&row.get::<_, i64>("group_no")];
            Ok(gone.iter().map(|row| (queue_of(row), Pid(row.get("pid")))).collect())
        })
        .await
    }

    /// Moves the stored start of a group on every queue; on how many.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_subscription(
        &self,
        tenant: TenantId,
        group: &str,
        at: Timestamp,
    ) -> Result<usize, Error> {
        let sql = include_str!("sql/group_subscription.sql");
        Ok(self.query(sql, &[&tenant.0, &group, &at]).await?.len())
    }

    /// Moves cursors, made where missing; leases on them end. Gives the partitions; none where the
    /// queue or the partition does not exist.
    ///
    /// # Errors
    /// When the store fails; nothing is moved then.
    pub async fn group_seek(&self, seek: &Seek) -> Result<Vec<Pid>, Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let txn = client.transaction().await?;
            txn.query(include_str!("sql/queue_lock.sql"), &[&seek.queue.0]).await?;
            let ends = ends_in_txn(&txn, seek.queue, seek.partition).await?;
            if ends.is_empty() {
                return Ok(Vec::new());
            }
            super::group::seed_in_txn(&txn, seek.queue, &seek.group, seek.start, false).await?;
            let find = include_str!("sql/group_find.sql");
            let group = txn.query_one(find, &[&seek.queue.0, &seek.group]).await?;
            put_in_txn(&txn, GroupNo(group.get("group_no")), &ends, seek.to).await?;
            txn.commit().await?;
            Ok(ends.into_iter().map(|(pid, _)| pid).collect())
        })
        .await
    }
}

/// Partitions of a queue with their next offsets, ascending.
async fn ends_in_txn(
    txn: &Transaction<'_>,
    queue: QueueNo,
    partition: Option<Pid>,
) -> Result<Vec<(Pid, i64)>, Error> {
    let pid = partition.map(|pid| pid.0);
    let rows = txn.query(include_str!("sql/partition_ends.sql"), &[&queue.0, &pid]).await?;
    Ok(rows.iter().map(|row| (Pid(row.get("pid")), row.get("next_offset"))).collect())
}

/// Sets cursors at an instant, or at the ends of their partitions.
async fn put_in_txn(
    txn: &Transaction<'_>,
    group: GroupNo,
    ends: &[(Pid, i64)],
    to: Option<Timestamp>,
) -> Result<(), Error> {
    let pids: Vec<i64> = ends.iter().map(|(pid, _)| pid.0).collect();
    let next: Vec<i64> = match to {
        None => ends.iter().map(|(_, end)| *end).collect(),
        Some(at) => {
            let instants = vec![at; pids.len()];
            let rows = txn.query(include_str!("sql/offsets_at.sql"), &[&pids, &instants]).await?;
            rows.iter().map(|row| row.get("first_offset")).collect()
        }
    };
    let groups = vec![group.0; pids.len()];
    let committed: Vec<i64> = next.iter().map(|next| next - 1).collect();
    txn.query(include_str!("sql/cursors_put.sql"), &[&pids, &groups, &committed]).await?;
    Ok(())
}
