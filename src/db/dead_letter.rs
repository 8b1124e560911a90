//! Dead letters: reading them, removing them, and their return into a log.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::append::{Append, Appended, push_in_txn};
use super::{Db, Error};
use crate::log;
use crate::types::id::{PartitionId, Pid, TenantId};

/// The snapshot of a message that a group gave up on.
#[derive(Clone, Debug)]
pub struct DeadLetterRow {
    /// Id of the record.
    pub id: Uuid,
    /// Queue of the message.
    pub queue: String,
    /// Partition of the message; `None` once it is gone.
    pub partition: Option<(PartitionId, String)>,
    /// Group that gave up.
    pub group: String,
    /// Offset of the message in its partition.
    pub offset: i64,
    /// Id of the message.
    pub message_id: Uuid,
    /// Id that acks name.
    pub transaction_id: String,
    /// JSON text.
    pub payload: String,
    /// Subject of the producer's token.
    pub producer_sub: Option<String>,
    /// Trace id of the message.
    pub trace_id: Option<Uuid>,
    /// Failed deliveries before.
    pub retry_count: i32,
    /// Why.
    pub reason: Option<String>,
    /// When the message was committed.
    pub created_at: Timestamp,
    /// When it was given up.
    pub failed_at: Timestamp,
}

/// Which dead letters to list; an absent part is no filter.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    /// Queue.
    pub queue: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Group that gave up.
    pub group: Option<String>,
    /// Given up at or after it.
    pub from: Option<Timestamp>,
    /// Given up before it.
    pub to: Option<Timestamp>,
    /// Rows at most.
    pub limit: i64,
    /// Rows to leave out first.
    pub offset: i64,
}

/// What became of a record that was to be appended again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// No such record of the tenant.
    Gone,
    /// The record was there; it is gone now if the append was stored, and stays otherwise.
    Found(Appended),
}

impl DeadLetterRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let payload = String::from_utf8(row.get("payload"));
        let partition_id = row.get::<_, Option<Uuid>>("partition_id").map(PartitionId);
        Ok(Self {
            id: row.get("id"),
            queue: row.get("queue"),
            partition: partition_id.zip(row.get("partition")),
            group: row.get("group_name"),
            offset: row.get("first_offset"),
            message_id: row.get("message_id"),
            transaction_id: row.get("transaction_id"),
            payload: payload.map_err(|_utf8| log::Error::Malformed("payload"))?,
            producer_sub: row.get("producer_sub"),
            trace_id: row.get("trace_id"),
            retry_count: row.get("retry_count"),
            reason: row.get("error_message"),
            created_at: row.get("created_at"),
            failed_at: row.get("failed_at"),
        })
    }
}

impl Db {
    /// Dead letters, newest failure first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_list(
        &self,
        tenant: TenantId,
        f: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetterRow>, Error> {
        let rows = self
            .query(
                include_str!("sql/dead_letter_list.sql"),
                &[&tenant.0, &f.queue, &f.partition, &f.group, &f.from, &f.to, &f.limit, &f.offset],
            )
            .await?;
        rows.iter().map(DeadLetterRow::from_row).collect()
    }

    /// A dead letter by its id.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_find(
        &self,
        tenant: TenantId,
        id: Uuid,
    ) -> Result<Option<DeadLetterRow>, Error> {
        let sql = include_str!("sql/dead_letter_find.sql");
        self.query_opt(sql, &[&tenant.0, &id])
            .await?
            .as_ref()
            .map(DeadLetterRow::from_row)
            .transpose()
    }

    /// The newest dead letter of a message address.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_newest(
        &self,
        tenant: TenantId,
        pid: Pid,
        transaction_id: &str,
    ) -> Result<Option<DeadLetterRow>, Error> {
        let sql = include_str!("sql/dead_letter_newest.sql");
        let row = self.query_opt(sql, &[&tenant.0, &pid.0, &transaction_id]).await?;
        row.as_ref().map(DeadLetterRow::from_row).transpose()
    }

    /// Removes the dead letters of a message address, those of every group; how many there were.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_delete(&self, pid: Pid, transaction_id: &str) -> Result<usize, Error> {
        let sql = include_str!("sql/dead_letter_delete.sql");
        Ok(self.query(sql, &[&pid.0, &transaction_id]).await?.len())
    }

    /// Removes the dead letters of a queue, or those of one group; how many there were.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_letter_purge(
        &self,
        tenant: TenantId,
        queue: &str,
        group: Option<&str>,
    ) -> Result<i64, Error> {
        let sql = include_str!("sql/dead_letter_purge.sql");
        let row = self.query_opt(sql, &[&tenant.0, &queue, &group]).await?;
        Ok(row.map_or(0, |row| row.get("n")))
    }

    /// Takes a record out and appends its message, or does neither.
    ///
    /// # Errors
    /// When the store fails. [`Error::Unavailable`] and [`Error::Timeout`]: the outcome is unknown.
    pub async fn dead_letter_replay(
        &self,
        tenant: TenantId,
        id: Uuid,
        append: &Append,
    ) -> Result<Replayed, Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let txn = client.transaction().await?;
            // The partition row first: the deletion of a queue takes both in this order.
            txn.query(include_str!("sql/partition_lock.sql"), &[&append.pid.0]).await?;
            let claim = include_str!("sql/dead_letter_claim.sql");
            if txn.query_opt(claim, &[&tenant.0, &id]).await?.is_none() {
                return Ok(Replayed::Gone);
            }
            let outcome = push_in_txn(&txn, std::slice::from_ref(append)).await?;
            let outcome = outcome.into_iter().next().unwrap_or(Appended::Missing);
            if matches!(outcome, Appended::At { .. }) {
                txn.commit().await?;
            }
            Ok(Replayed::Found(outcome))
        })
        .await
    }
}
