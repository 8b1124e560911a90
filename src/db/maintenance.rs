//! Maintenance switches, and the spool of pushes.

use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::TenantId;

/// The two switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Pushes are spooled.
    pub push: bool,
    /// Pops answer empty.
    pub pop: bool,
}

/// A spooled message.
#[derive(Clone, Debug)]
pub struct Spooled {
    /// Place in the spool; 0 before it is stored.
    pub id: i64,
    /// Owner.
    pub tenant: TenantId,
    /// Target queue.
    pub queue: String,
    /// Target partition.
    pub partition: String,
    /// Id of the message, as told to the producer.
    pub message_id: Uuid,
    /// Idempotency key; the message id where absent.
    pub transaction_id: Option<String>,
    /// Subject of the producer's token.
    pub producer_sub: Option<String>,
    /// JSON text, sealed if its queue wants that.
    pub payload: String,
}

impl Db {
    /// The maintenance switches.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn switches(&self) -> Result<Switches, Error> {
        let mut switches = Switches::default();
        for row in self.query(include_str!("sql/switches.sql"), &[]).await? {
            let enabled: bool = row.get("enabled");
            match row.get::<_, &str>("name") {
                "push" => switches.push = enabled,
                _ => switches.pop = enabled,
            }
        }
        Ok(switches)
    }

    /// Sets a switch, `push` or `pop`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn switch_set(&self, name: &str, enabled: bool) -> Result<(), Error> {
        self.query(include_str!("sql/switch_set.sql"), &[&name, &enabled]).await.map(drop)
    }

    /// Takes messages into the spool, all or none.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn spool_insert(&self, tenant: TenantId, items: &[Spooled]) -> Result<(), Error> {
        let queue: Vec<&str> = items.iter().map(|i| i.queue.as_str()).collect();
        let partition: Vec<&str> = items.iter().map(|i| i.partition.as_str()).collect();
        let message: Vec<Uuid> = items.iter().map(|i| i.message_id).collect();
        let transaction: Vec<Option<&str>> =
            items.iter().map(|i| i.transaction_id.as_deref()).collect();
        let sub: Vec<Option<&str>> = items.iter().map(|i| i.producer_sub.as_deref()).collect();
        let payload: Vec<&[u8]> = items.iter().map(|i| i.payload.as_bytes()).collect();
        self.query(
            include_str!("sql/spool_insert.sql"),
            &[&tenant.0, &queue, &partition, &message, &transaction, &sub, &payload],
        )
        .await
        .map(drop)
    }

    /// The oldest messages of the spool.
    ///
    /// # Errors
    /// When the store fails, or a payload is no text.
    pub async fn spool_next(&self, most: i64) -> Result<Vec<Spooled>, Error> {
        let rows = self.query(include_str!("sql/spool_next.sql"), &[&most]).await?;
        rows.iter()
            .map(|row| {
                let payload = String::from_utf8(row.get("payload"))
                    .map_err(|_utf8| crate::log::Error::Malformed("spooled payload"))?;
                Ok(Spooled {
                    id: row.get("id"),
                    tenant: TenantId(row.get("tenant_id")),
                    queue: row.get("queue"),
                    partition: row.get("partition"),
                    message_id: row.get("message_id"),
                    transaction_id: row.get("transaction_id"),
                    producer_sub: row.get("producer_sub"),
                    payload,
                })
            })
            .collect()
    }

    /// How many messages wait in the spool.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn spool_count(&self) -> Result<i64, Error> {
        let row = self.query_opt(include_str!("sql/spool_count.sql"), &[]).await?;
        Ok(row.map_or(0, |row| row.get("n")))
    }
}
