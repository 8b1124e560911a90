//! Hosted queries: what brokers run, and how it goes.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::query::Query;
use super::{Db, Error};
use crate::types::cycle::Timers;
use crate::types::id::{QueryNo, TenantId};

/// Life cycle of a hosted query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Brokers run it.
    Running,
    /// An operator stopped it.
    Paused,
    /// A failure stopped it until an operator acts.
    Halted,
}

impl RunState {
    /// The word in store and wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Halted => "halted",
        }
    }
}

/// A hosted query as stored.
#[derive(Clone, Debug)]
pub struct HostedRow {
    /// Its registration.
    pub query: Query,
    /// SHA-256 of the module in use.
    pub module_hash: [u8; 32],
    /// JSON text of the parameters, empty where none were given.
    pub params: String,
    /// Where its group starts.
    pub start: serde_json::Value,
    /// Messages a batch.
    pub batch: i32,
    /// Whether poison pauses the query instead of being dead-lettered.
    pub pause_on_poison: bool,
    /// Queues that the fold may emit to.
    pub sinks: Vec<String>,
    /// What due times are compared with.
    pub timers: Timers,
    /// Silence after which the clock becomes the watermark, ms; 0 never.
    pub idle_ms: i32,
    /// Life cycle.
    pub state: RunState,
    /// Why it is paused or halted.
    pub state_reason: Option<String>,
    /// The last failure.
    pub last_error: Option<serde_json::Value>,
    /// When it failed last.
    pub last_error_at: Option<Timestamp>,
    /// Failed calls of the guest so far.
    pub failures: i64,
    /// Messages dead-lettered so far.
    pub dead_letters: i64,
}

impl HostedRow {
    fn from_row(row: &Row) -> Self {
        let hash: Vec<u8> = row.get("module_hash");
        Self {
            query: Query::from_row(row),
            module_hash: hash.try_into().expect("the table checks the length"),
            params: row.get("params"),
            start: row.get("start"),
            batch: row.get("batch"),
            pause_on_poison: row.get::<_, &str>("on_poison") == "pause",
            sinks: row.get("sinks"),
            timers: if row.get::<_, &str>("timers") == "clock" {
                Timers::Clock
            } else {
                Timers::Watermark
            },
            idle_ms: row.get("idle_ms"),
            state: match row.get::<_, &str>("state") {
                "running" => RunState::Running,
                "paused" => RunState::Paused,
                _ => RunState::Halted,
            },
            state_reason: row.get("state_reason"),
            last_error: row.get("last_error"),
            last_error_at: row.get("last_error_at"),
            failures: row.get("failures"),
            dead_letters: row.get("dead_letters"),
        }
    }
}

/// Counters, open state and lag of a query.
#[derive(Clone, Debug)]
pub struct QueryFigures {
    /// Committed cycles.
    pub cycles: i64,
    /// Messages folded.
    pub messages: i64,
    /// Messages appended to sinks.
    pub emits: i64,
    /// Messages counted but left out, by cause.
    pub tallies: serde_json::Value,
    /// Rows of state.
    pub state_rows: i64,
    /// Bytes of keys and values.
    pub state_bytes: i64,
    /// Partitions with a shard.
    pub partitions: i64,
    /// Smallest watermark of its partitions, Unix ms.
    pub watermark_ms: Option<i64>,
    /// Messages of the source that its group has not settled.
    pub lag_messages: i64,
}

impl Db {
    /// Hosted queries, of one tenant and name if given.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn hosted_list(
        &self,
        tenant: Option<TenantId>,
        name: Option<&str>,
    ) -> Result<Vec<HostedRow>, Error> {
        let tenant = tenant.map(|t| t.0);
        let rows = self.query(include_str!("sql/hosted_list.sql"), &[&tenant, &name]).await?;
        Ok(rows.iter().map(HostedRow::from_row).collect())
    }

    /// Figures of a query, exact at the time of the call.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn query_figures(&self, query: &Query) -> Result<QueryFigures, Error> {
        let row = self
            .query_opt(
                include_str!("sql/query_figures.sql"),
                &[&query.no.0, &query.tenant.0, &query.source_queue, &query.group()],
            )
            .await?
            .expect("a select of scalars gives one row");
        Ok(QueryFigures {
            cycles: row.get("cycles"),
            messages: row.get("messages"),
            emits: row.get("emits"),
            tallies: row.get("tallies"),
            state_rows: row.get("state_rows"),
            state_bytes: row.get("state_bytes"),
            partitions: row.get("partitions"),
            watermark_ms: row.get("watermark_ms"),
            lag_messages: row.get("lag_messages"),
        })
    }

    /// Moves a hosted query to a state; whether anything changed.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn hosted_state(
        &self,
        query: QueryNo,
        state: RunState,
        reason: Option<&str>,
    ) -> Result<bool, Error> {
        let row = self
            .query_opt(include_str!("sql/hosted_state.sql"), &[&query.0, &state.as_str(), &reason])
            .await?;
        Ok(row.is_some())
    }

    /// Records a failure of the guest.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn hosted_failure(
        &self,
        query: QueryNo,
        error: &serde_json::Value,
    ) -> Result<(), Error> {
        self.query(include_str!("sql/hosted_failure.sql"), &[&query.0, &error]).await.map(drop)
    }

    /// Counts messages that a hosted query gave up.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn hosted_dead_letters(&self, query: QueryNo, n: i64) -> Result<(), Error> {
        self.query(include_str!("sql/hosted_dead_letters.sql"), &[&query.0, &n]).await.map(drop)
    }
}
