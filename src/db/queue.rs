//! Queues and partitions: rows in, rows out.

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{PartitionId, Pid, QueueNo, TenantId};

/// Options of a queue as statements read them, and as the configure route echoes them.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueOptions {
    /// Lease of a pop that names none, s.
    pub lease_time_s: i32,
    /// Failed acks tolerated before the dead letter.
    pub retry_limit: i32,
    /// Whether an exhausted message is kept as a dead letter.
    pub dead_letter: bool,
    /// Age at which a message becomes visible, s.
    pub delayed_processing_s: i32,
    /// How long a partition is held after its first unserved write, s.
    pub window_buffer_s: i32,
    /// How long an under-full waiting pop may be held, ms.
    pub min_pop_wait_ms: i32,
    /// Length of the dedup window, s; 0 is off.
    pub dedup_window_s: i32,
    /// Switch of the two retentions below.
    pub retention_enabled: bool,
    /// Age at which messages are removed, s; 0 keeps.
    pub retention_s: i32,
    /// The same for messages that every group has passed, s; 0 keeps.
    pub completed_retention_s: i32,
    /// Age at which unconsumed messages are removed, s; 0 keeps.
    pub max_wait_time_s: i32,
    /// Whether new payloads are encrypted at rest.
    pub encryption_enabled: bool,
    /// Every option of the contract, resolved, as JSON.
    pub echo: serde_json::Value,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Number in the store.
    pub no: QueueNo,
    /// Wire id.
    pub id: Uuid,
    /// Owner.
    pub tenant: TenantId,
    /// Name, unique within the tenant.
    pub name: String,
    /// Discovery label.
    pub namespace: String,
    /// Discovery label.
    pub task: String,
    /// Options in force.
    pub options: QueueOptions,
    /// When it was created.
    pub created_at: Timestamp,
}

impl Queue {
    /// Number of a queue that the running transaction has yet to make.
    pub const NUMBER_PENDING: QueueNo = QueueNo(-1);

    fn from_row(row: &Row) -> Self {
        Self {
            no: QueueNo(row.get("queue_no")),
            id: row.get("id"),
            tenant: TenantId(row.get("tenant_id")),
            name: row.get("name"),
            namespace: row.get("namespace"),
            task: row.get("task"),
            options: QueueOptions {
                lease_time_s: row.get("lease_time_s"),
                retry_limit: row.get("retry_limit"),
                dead_letter: row.get("dead_letter"),
                delayed_processing_s: row.get("delayed_processing_s"),
                window_buffer_s: row.get("window_buffer_s"),
                min_pop_wait_ms: row.get("min_pop_wait_ms"),
                dedup_window_s: row.get("dedup_window_s"),
                retention_enabled: row.get("retention_enabled"),
                retention_s: row.get("retention_s"),
                completed_retention_s: row.get("completed_retention_s"),
                max_wait_time_s: row.get("max_wait_time_s"),
                encryption_enabled: row.get("encryption_enabled"),
                echo: row.get("options"),
            },
            created_at: row.get("created_at"),
        }
    }

    /// Wire id of the partition of that name, whether it exists or not.
    #[must_use]
    pub fn partition_id(&self, name: &str) -> PartitionId {
        PartitionId::derive(self.id, name)
    }
}

/// A queue that is to exist.
#[derive(Clone, Debug)]
pub struct NewQueue {
    /// Owner.
    pub tenant: TenantId,
    /// Wire id.
    pub id: Uuid,
    /// Name.
    pub name: String,
    /// Discovery label.
    pub namespace: String,
    /// Discovery label.
    pub task: String,
    /// Options.
    pub options: QueueOptions,
}

/// Creates a queue unless one of that name exists, and gives it; `None` under a race.
pub(super) async fn insert_queue(
    client: &impl GenericClient,
    new: &NewQueue,
) -> Result<Option<Queue>, Error> {
    let o = &new.options;
    let row = client
        .query_opt(
            include_str!("sql/queue_insert.sql"),
            &[
                &new.id,
                &new.tenant.0,
                &new.name,
                &new.namespace,
                &new.task,
                &o.lease_time_s,
                &o.retry_limit,
                &o.dead_letter,
                &o.delayed_processing_s,
                &o.window_buffer_s,
                &o.min_pop_wait_ms,
                &o.dedup_window_s,
                &o.retention_enabled,
                &o.retention_s,
                &o.completed_retention_s,
                &o.max_wait_time_s,
                &o.encryption_enabled,
                &o.echo,
            ],
        )
        .await?;
    Ok(row.as_ref().map(Queue::from_row))
}

/// A partition that is to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPartition {
    /// Queue that it belongs to.
    pub queue: QueueNo,
    /// Wire id.
    pub id: PartitionId,
    /// Name.
    pub name: String,
}

/// Arrays of [`NewPartition`], sorted by pid: the lock order.
pub(super) fn partition_arrays(
    new: &[NewPartition],
) -> (Vec<i64>, Vec<i64>, Vec<Uuid>, Vec<String>) {
    let mut sorted: Vec<&NewPartition> = new.iter().collect();
    sorted.sort_by_key(|p| p.id.pid());
    sorted.dedup_by_key(|p| p.id.pid());
    (
        sorted.iter().map(|p| p.queue.0).collect(),
        sorted.iter().map(|p| p.id.pid().0).collect(),
        sorted.iter().map(|p| p.id.0).collect(),
        sorted.iter().map(|p| p.name.clone()).collect(),
    )
}

impl Db {
    /// The queue of that name.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_find(&self, tenant: TenantId, name: &str) -> Result<Option<Queue>, Error> {
        let row = self.query_opt(include_str!("sql/queue_find.sql"), &[&tenant.0, &name]).await?;
        Ok(row.as_ref().map(Queue::from_row))
    }

    /// The partition with that wire id: its name and its queue.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partition_find(&self, id: PartitionId) -> Result<Option<(String, Queue)>, Error> {
        let row = self
            .query_opt(include_str!("sql/queue_of_partition.sql"), &[&id.pid().0, &id.0])
            .await?;
        Ok(row.as_ref().map(|row| (row.get("partition"), Queue::from_row(row))))
    }

    /// Wire id and name of a partition by its number.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn partition_name(&self, pid: Pid) -> Result<Option<(PartitionId, String)>, Error> {
        let row = self.query_opt(include_str!("sql/partition_name.sql"), &[&pid.0]).await?;
        Ok(row.map(|row| (PartitionId(row.get("id")), row.get("name"))))
    }

    /// Creates the queue unless it exists, and gives it.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_ensure(
        &self,
        tenant: TenantId,
        name: &str,
        namespace: &str,
        task: &str,
        o: &QueueOptions,
    ) -> Result<Queue, Error> {
        let new = NewQueue {
            tenant,
            id: Uuid::now_v7(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            task: task.to_owned(),
            options: o.clone(),
        };
        // Under a race the row of the winner may not be visible to the statement that lost.
        self.session(async || {
            let client = self.pool.get().await?;
            loop {
                if let Some(queue) = insert_queue(&**client, &new).await? {
                    return Ok(queue);
                }
            }
        })
        .await
    }

    /// Overwrites labels and options of a queue; `None` when it is gone.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_update(
        &self,
        no: QueueNo,
        namespace: &str,
        task: &str,
        o: &QueueOptions,
    ) -> Result<Option<Queue>, Error> {
        let row = self
            .query_opt(
                include_str!("sql/queue_update.sql"),
                &[
                    &no.0,
                    &namespace,
                    &task,
                    &o.lease_time_s,
                    &o.retry_limit,
                    &o.dead_letter,
                    &o.delayed_processing_s,
                    &o.window_buffer_s,
                    &o.min_pop_wait_ms,
                    &o.dedup_window_s,
                    &o.retention_enabled,
                    &o.retention_s,
                    &o.completed_retention_s,
                    &o.max_wait_time_s,
                    &o.encryption_enabled,
                    &o.echo,
                ],
            )
            .await?;
        Ok(row.as_ref().map(Queue::from_row))
    }

    /// Queues by discovery labels; an empty label is no filter.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_match(
        &self,
        tenant: TenantId,
        namespace: &str,
        task: &str,
    ) -> Result<Vec<Queue>, Error> {
        let rows = self
            .query(include_str!("sql/queue_match.sql"), &[&tenant.0, &namespace, &task])
            .await?;
        Ok(rows.iter().map(Queue::from_row).collect())
    }

    /// Removes a queue with messages, cursors, registrations, dead letters and stream state.
    ///
    /// # Errors
    /// When the store fails; nothing is removed then.
    pub async fn queue_delete(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<Option<QueueNo>, Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let txn = client.transaction().await?;
            let gone =
                txn.query_opt(include_str!("sql/queue_delete.sql"), &[&tenant.0, &name]).await?;
            let Some(gone) = gone else { return Ok(None) };
            let no: i64 = gone.get("queue_no");
            txn.execute(include_str!("sql/queue_drop.sql"), &[&no]).await?;
            txn.commit().await?;
            Ok(Some(QueueNo(no)))
        })
        .await
    }

    /// Creates the partitions that are missing.
    ///
    /// # Errors
    /// [`Error::Constraint`] when a queue is gone; a collision of ids is refused.
    pub async fn partitions_ensure(&self, new: &[NewPartition]) -> Result<(), Error> {
        let (queues, pids, ids, names) = partition_arrays(new);
        self.query(include_str!("sql/partitions_ensure.sql"), &[&queues, &pids, &ids, &names])
            .await
            .map(drop)
    }
}

impl NewPartition {
    /// The partition's number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.id.pid()
    }
}
