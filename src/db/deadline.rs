//! Shards that must be looked at although no message comes.

use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{PartitionId, QueryNo};

/// A shard whose wake time has come.
#[derive(Clone, Copy, Debug)]
pub struct DueShard {
    /// Source partition.
    pub partition: PartitionId,
    /// Query.
    pub query: QueryNo,
    /// Watermark that the last cycle left, Unix ms.
    pub watermark_ms: Option<i64>,
    /// Earliest due time, Unix ms.
    pub next_due_ms: Option<i64>,
    /// The database's clock, Unix ms.
    pub now_ms: i64,
}

impl Db {
    /// Takes up to `most` due shards; other brokers leave them alone for a second.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn due_shards(&self, most: i64) -> Result<Vec<DueShard>, Error> {
        let rows = self.query(include_str!("sql/due_shards.sql"), &[&most]).await?;
        Ok(rows
            .iter()
            .filter(|row| !row.get::<_, bool>("waits"))
            .map(|row| DueShard {
                partition: PartitionId(row.get::<_, Uuid>("partition_id")),
                query: QueryNo(row.get("query_no")),
                watermark_ms: row.get("watermark_ms"),
                next_due_ms: row.get("next_due_ms"),
                now_ms: row.get("now_ms"),
            })
            .collect())
    }

    /// Milliseconds until the next shard is due, negative when one is; `None` without any.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn next_wake_ms(&self) -> Result<Option<i64>, Error> {
        let row = self.query_opt(include_str!("sql/next_wake.sql"), &[]).await?;
        Ok(row.and_then(|row| row.get("wait_ms")))
    }

    /// Partitions of a query that hold rows with a due time.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn open_shards(&self, query: QueryNo) -> Result<Vec<PartitionId>, Error> {
        let rows = self.query(include_str!("sql/open_shards.sql"), &[&query.0]).await?;
        Ok(rows.iter().map(|row| PartitionId(row.get("partition_id"))).collect())
    }

    /// The database's clock, Unix ms: the one clock of leases and deadlines.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn clock_ms(&self) -> Result<i64, Error> {
        let row = self.query_opt(include_str!("sql/clock.sql"), &[]).await?;
        Ok(row.expect("a select of scalars gives one row").get("now_ms"))
    }
}
