//! Counts of queues and partitions, live.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::message::Scope;
use super::{Db, Error};
use crate::types::id::{PartitionId, Pid, QueueNo, TenantId};

/// Messages by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Retained.
    pub total: i64,
    /// Not settled, those under a lease included.
    pub pending: i64,
    /// Under a live lease.
    pub processing: i64,
    /// Settled, without dead letters.
    pub completed: i64,
    /// Dead letters.
    pub dead_letters: i64,
}

/// A queue with its counts.
#[derive(Clone, Debug)]
pub struct QueueFigures {
    /// Number.
    pub no: QueueNo,
    /// Wire id.
    pub id: Uuid,
    /// Name.
    pub name: String,
    /// Discovery label.
    pub namespace: String,
    /// Discovery label.
    pub task: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Number of partitions.
    pub partitions: i64,
    /// Messages.
    pub counts: Counts,
    /// Messages settled so far, by all groups.
    pub total_consumed: i64,
}

/// A partition with its counts.
#[derive(Clone, Debug)]
pub struct PartitionFigures {
    /// Wire id.
    pub id: PartitionId,
    /// Name.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Messages.
    pub counts: Counts,
    /// Oldest retained message.
    pub oldest_at: Option<Timestamp>,
    /// Newest retained message.
    pub newest_at: Option<Timestamp>,
    /// Messages settled so far, by all groups.
    pub total_consumed: i64,
    /// Last settlement.
    pub last_consumed_at: Option<Timestamp>,
}

/// Average, median, least and largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Average.
    pub avg: f64,
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// Counts of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantFigures {
    /// Queues.
    pub queues: i64,
    /// Partitions.
    pub partitions: i64,
    /// Namespaces, without the empty one.
    pub namespaces: i64,
    /// Tasks, without the empty one.
    pub tasks: i64,
    /// Messages.
    pub counts: Counts,
    /// Messages settled so far, by all groups.
    pub total_consumed: i64,
    /// Pending messages of the partitions that have some.
    pub lag: Spread,
    /// Age of the oldest of them, s.
    pub lag_s: Spread,
}

/// Counts under one namespace or task.
#[derive(Clone, Debug)]
pub struct LabelFigures {
    /// The label.
    pub label: String,
    /// Queues.
    pub queues: i64,
    /// Partitions.
    pub partitions: i64,
    /// Retained messages.
    pub total: i64,
    /// Messages that are not settled.
    pub pending: i64,
}

/// The two discovery labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// Namespaces.
    Namespace,
    /// Tasks.
    Task,
}

/// What one partition has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DepthRow {
    /// Partition.
    pub partition: String,
    /// Messages left.
    pub pending: i64,
    /// Of these, under a live lease.
    pub processing: i64,
}

/// Stored size of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSize {
    /// Segments.
    pub segments: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Counts {
    fn from_row(row: &Row) -> Self {
        Self {
            total: row.get("total"),
            pending: row.get("pending"),
            processing: row.get("processing"),
            completed: row.get("completed"),
            dead_letters: row.get("dead_letters"),
        }
    }
}

impl Db {
    /// Queues with their counts, newest first; the scope's partition is no filter here.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_figures(
        &self,
        tenant: TenantId,
        scope: &Scope,
        limit: Option<i64>,
        offset: i64,
    ) -> Result<Vec<QueueFigures>, Error> {
        let rows = self
            .query(
                include_str!("sql/queue_figures.sql"),
                &[&tenant.0, &scope.queue, &scope.namespace, &scope.task, &limit, &offset],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| QueueFigures {
                no: QueueNo(row.get("queue_no")),
                id: row.get("id"),
                name: row.get("name"),
                namespace: row.get("namespace"),
                task: row.get("task"),
                created_at: row.get("created_at"),
                partitions: row.get("partitions"),
                counts: Counts::from_row(row),
                total_consumed: row.get("total_consumed"),
            })
            .collect())
    }

    /// The partitions of a queue with their counts, by name.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partition_figures(&self, queue: QueueNo) -> Result<Vec<PartitionFigures>, Error> {
        let rows = self.query(include_str!("sql/partition_figures.sql"), &[&queue.0]).await?;
        Ok(rows
            .iter()
            .map(|row| PartitionFigures {
                id: PartitionId(row.get("id")),
                name: row.get("name"),
                created_at: row.get("created_at"),
                counts: Counts::from_row(row),
                oldest_at: row.get("oldest_at"),
                newest_at: row.get("newest_at"),
                total_consumed: row.get("total_consumed"),
                last_consumed_at: row.get("last_consumed_at"),
            })
            .collect())
    }

    /// Partitions with a message at or after an instant, and their next offsets.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partitions_written(
        &self,
        tenant: TenantId,
        scope: &Scope,
        from: Timestamp,
    ) -> Result<Vec<(Pid, i64)>, Error> {
        let sql = include_str!("sql/partitions_written.sql");
        let rows = self
            .query(sql, &[&tenant.0, &scope.queue, &scope.namespace, &scope.task, &from])
            .await?;
        Ok(rows.iter().map(|row| (Pid(row.get("pid")), row.get("next_offset"))).collect())
    }

    /// What a group has left on a queue, by partition; a group that is not registered has
    /// everything left.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn depth(&self, queue: QueueNo, group: &str) -> Result<Vec<DepthRow>, Error> {
        let rows = self.query(include_str!("sql/depth.sql"), &[&queue.0, &group]).await?;
        Ok(rows
            .iter()
            .map(|row| DepthRow {
                partition: row.get("name"),
                pending: row.get("pending"),
                processing: row.get("processing"),
            })
            .collect())
    }

    /// Counts of a tenant.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn tenant_figures(&self, tenant: TenantId) -> Result<TenantFigures, Error> {
        let rows = self.query(include_str!("sql/tenant_figures.sql"), &[&tenant.0]).await?;
        let row = rows.first().expect("an aggregate gives one row");
        Ok(TenantFigures {
            queues: row.get("queues"),
            partitions: row.get("partitions"),
            namespaces: row.get("namespaces"),
            tasks: row.get("tasks"),
            counts: Counts::from_row(row),
            total_consumed: row.get("total_consumed"),
            lag: Spread {
                avg: row.get("lag_avg"),
                median: row.get("lag_median"),
                min: row.get("lag_min"),
                max: row.get("lag_max"),
            },
            lag_s: Spread {
                avg: row.get("age_avg"),
                median: row.get("age_median"),
                min: row.get("age_min"),
                max: row.get("age_max"),
            },
        })
    }

    /// Counts by label, sorted; the empty label is left out.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn label_figures(
        &self,
        tenant: TenantId,
        label: Label,
    ) -> Result<Vec<LabelFigures>, Error> {
        let namespace = label == Label::Namespace;
        let sql = include_str!("sql/label_figures.sql");
        let rows = self.query(sql, &[&tenant.0, &namespace]).await?;
        Ok(rows
            .iter()
            .map(|row| LabelFigures {
                label: row.get("label"),
                queues: row.get("queues"),
                partitions: row.get("partitions"),
                total: row.get("total"),
                pending: row.get("pending"),
            })
            .collect())
    }

    /// Stored sizes of queues that have segments. Its cost is the number of segments.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_sizes(
        &self,
        queues: &[QueueNo],
    ) -> Result<Vec<(QueueNo, QueueSize)>, Error> {
        let numbers: Vec<i64> = queues.iter().map(|queue| queue.0).collect();
        let rows = self.query(include_str!("sql/queue_sizes.sql"), &[&numbers]).await?;
        Ok(rows
            .iter()
            .map(|row| {
                let size = QueueSize { segments: row.get("segments"), bytes: row.get("bytes") };
                (QueueNo(row.get("queue_no")), size)
            })
            .collect())
    }
}
