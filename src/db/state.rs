//! State rows: reads for the wire and for hosted folds.

use jiff::Timestamp;
use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{Pid, QueryNo, TenantId};

/// One row as the wire shows it.
#[derive(Clone, Debug)]
pub struct StateRow {
    /// Key.
    pub key: String,
    /// JSON text as written.
    pub value: String,
    /// Last write.
    pub updated_at: Timestamp,
}

/// Filters of a read, all of which must hold (streams G9).
#[derive(Clone, Debug, Default)]
pub struct StateFilter {
    /// Exact keys.
    pub keys: Option<Vec<String>>,
    /// Literal prefix.
    pub prefix: Option<String>,
    /// Rows whose `value.windowEnd` is a number at or before this, Unix ms.
    pub ripe_at_or_before: Option<f64>,
}

/// One row as a hosted fold reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRow {
    /// JSON text as written.
    pub value: String,
    /// When the fold wants a flush, Unix ms.
    pub due_ms: Option<i64>,
}

/// Rows of a shard with the version that fences them.
#[derive(Clone, Debug, Default)]
pub struct ShardRead {
    /// Version of the shard; 0 where it has never been written.
    pub version: i64,
    /// Watermark that the last cycle left, Unix ms.
    pub watermark_ms: Option<i64>,
    /// Rows in key order.
    pub rows: Vec<(String, ShardRow)>,
}

/// Which rows of a shard.
#[derive(Clone, Copy, Debug)]
pub enum ShardQuery<'a> {
    /// All of them.
    Whole,
    /// The union of keys, prefixes and rows due at or before an instant.
    Some {
        /// Exact keys.
        keys: &'a [String],
        /// Literal prefixes.
        prefixes: &'a [String],
        /// Due time bound, Unix ms.
        due: Option<i64>,
    },
}

impl Db {
    /// State rows of (query, partition) in byte order of keys.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn state_get(
        &self,
        tenant: TenantId,
        query: Uuid,
        pid: Pid,
        filter: &StateFilter,
    ) -> Result<Vec<StateRow>, Error> {
        let rows = self
            .query(
                include_str!("sql/state_get.sql"),
                &[
                    &query,
                    &pid.0,
                    &filter.keys,
                    &filter.prefix,
                    &filter.ripe_at_or_before,
                    &tenant.0,
                ],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| StateRow {
                key: row.get("key"),
                value: row.get("value"),
                updated_at: row.get("updated_at"),
            })
            .collect())
    }

    /// Rows of a shard, at most `most` of them.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn shard_read(
        &self,
        pid: Pid,
        query: QueryNo,
        which: ShardQuery<'_>,
        most: i64,
    ) -> Result<ShardRead, Error> {
        let rows = match which {
            ShardQuery::Whole => {
                self.query(include_str!("sql/shard_read.sql"), &[&pid.0, &query.0, &most]).await?
            }
            ShardQuery::Some { keys, prefixes, due } => {
                self.query(
                    include_str!("sql/shard_read_some.sql"),
                    &[&pid.0, &query.0, &keys, &prefixes, &due, &most],
                )
                .await?
            }
        };
        let mut read = ShardRead::default();
        for row in &rows {
            read.version = row.get::<_, Option<i64>>("version").unwrap_or(0);
            read.watermark_ms = row.get("watermark_ms");
            if let Some(key) = row.get("key") {
                read.rows
                    .push((key, ShardRow { value: row.get("value"), due_ms: row.get("due_ms") }));
            }
        }
        Ok(read)
    }
}
