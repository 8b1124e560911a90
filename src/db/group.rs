//! Registrations of consumer groups.

use jiff::Timestamp;
use tokio_postgres::Transaction;

use super::{Db, Error};
use crate::types::id::{GroupNo, QueueNo};

/// Where a group starts on partitions that exist when it registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest retained message.
    All,
    /// Past everything that is there.
    New,
    /// At the first message committed at or after the instant.
    From(Timestamp),
}

/// A registration of a group on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number in the store.
    pub no: GroupNo,
    /// Whether the group takes only the newest message of a partition.
    pub conflation: bool,
}

impl Db {
    /// The registration, if there is one.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_find(&self, queue: QueueNo, name: &str) -> Result<Option<Group>, Error> {
        let row = self.query_opt(include_str!("sql/group_find.sql"), &[&queue.0, &name]).await?;
        Ok(row.map(|row| Group {
            no: GroupNo(row.get("group_no")),
            conflation: row.get("conflation"),
        }))
    }

    /// Registers the group unless it is registered; never overwrites (data-plane 117).
    ///
    /// Cursors are set on every partition that exists at this moment; partitions born later start
    /// at their beginning (115). `None` when the queue is gone.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn group_register(
        &self,
        queue: QueueNo,
        name: &str,
        start: Start,
        conflation: bool,
    ) -> Result<Option<Group>, Error> {
        if let Some(found) = self.group_find(queue, name).await? {
            return Ok(Some(found));
        }
        let made = self
            .session(async || {
                let mut client = self.pool.get().await?;
                let txn = client.transaction().await?;
                let lock = txn.query_opt(include_str!("sql/queue_lock.sql"), &[&queue.0]).await?;
                if lock.is_none() {
                    return Ok(false);
                }
                seed_in_txn(&txn, queue, name, start, conflation).await?;
                txn.commit().await?;
                Ok(true)
            })
            .await?;
        if made { self.group_find(queue, name).await } else { Ok(None) }
    }
}

/// Registers a group unless it is registered, and sets its cursors. The caller holds the lock of
/// the queue row.
pub(super) async fn seed_in_txn(
    txn: &Transaction<'_>,
    queue: QueueNo,
    name: &str,
    start: Start,
    conflation: bool,
) -> Result<(), Error> {
    let (mode, at) = match start {
        Start::All => ("all", None),
        Start::New => ("new", None),
        Start::From(at) => ("from", Some(at)),
    };
    let sql = include_str!("sql/group_seed.sql");
    txn.query(sql, &[&queue.0, &name, &mode, &at, &conflation]).await?;
    Ok(())
}
