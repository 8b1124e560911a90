//! The only place that speaks SQL.
//!
//! Functions here take parameters and give rows; meaning belongs to `broker`. Hot calls are one
//! prepared call of a database function, autocommitted. Every call is bounded in time.

pub mod append;
pub mod claim;
pub mod cycle;
pub mod dead_letter;
pub mod deadline;
mod error;
pub mod group;
pub mod group_admin;
pub mod hosted;
pub mod listen;
pub mod locks;
pub mod maintenance;
pub mod message;
mod migrate;
pub mod module;
pub mod query;
pub mod queue;
pub mod resource;
pub mod retention;
pub mod settle;
pub mod state;
pub mod status;
pub mod trace;
pub mod transaction;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts};
use tokio::sync::Notify;
use tokio_postgres::types::ToSql;
use tokio_postgres::{NoTls, Row};

pub use error::{Error, Refusal};

/// How the store is reached.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where PostgreSQL is and as whom to connect.
    pub postgres: tokio_postgres::Config,
    /// Connections for operations; the wake-up listener has one of its own.
    pub pool_size: usize,
    /// Longest time for one statement.
    pub statement_timeout: Duration,
}

/// A pool of connections to the store, migrated.
#[derive(Clone)]
pub struct Db {
    pool: Pool,
    config: Config,
    unanswered: Arc<Notify>,
}

impl Db {
    /// Connects, and brings the schema up to date under one lock, whoever comes first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the database cannot be reached; others when a migration fails.
    pub async fn connect(mut config: Config) -> Result<Self, Error> {
        config.postgres.application_name("foldmq");
        config.postgres.connect_timeout(Duration::from_secs(5));
        migrate::run(&config.postgres).await?;
        let timeout_ms = config.statement_timeout.as_millis();
        let options = config.postgres.get_options().unwrap_or_default();
        let mut pooled = config.postgres.clone();
        pooled.options(format!("{options} -c statement_timeout={timeout_ms} -c jit=off"));
        let manager = Manager::from_config(
            pooled,
            NoTls,
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(config.pool_size)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(config.statement_timeout),
                create: Some(Duration::from_secs(10)),
                recycle: Some(Duration::from_secs(5)),
            })
            .build()
            .map_err(|e| Error::Unavailable(Box::new(e)))?;
        Ok(Self { pool, config, unanswered: Arc::default() })
    }

    /// The settings in use.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Connections in the pool: (open, idle, callers that wait).
    #[must_use]
    pub fn pool_status(&self) -> (usize, usize, usize) {
        let status = self.pool.status();
        (status.size, status.available, status.waiting)
    }

    /// Runs one prepared statement and gives its rows.
    async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let limit = self.config.statement_timeout + Duration::from_secs(2);
        let client = self.pool.get().await?;
        let call = async {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, params).await?)
        };
        let late = |_elapsed| Err(Error::Timeout(limit.as_millis()));
        let outcome = tokio::time::timeout(limit, call).await.unwrap_or_else(late);
        give_back(client, outcome)
    }

    /// Runs a call of several statements, and repeats it where the store asks for that. It is given
    /// up after twice the time for a statement: a silent connection answers never.
    async fn session<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let limit = self.config.statement_timeout * 2 + Duration::from_secs(2);
        retried(|| {
            let attempt = tokio::time::timeout(limit, call());
            async move {
                if let Ok(outcome) = attempt.await {
                    return outcome;
                }
                // Its connection is back in the pool, and answers on it may still come: what has
                // not been used since then serves nobody else.
                let longest = self.config.statement_timeout;
                self.pool.retain(|_, metrics| metrics.last_used() < longest);
                Err(Error::Timeout(limit.as_millis()))
            }
        })
        .await
        .inspect_err(|cause| self.doubt(cause))
    }

    /// Takes note of a write whose outcome is unknown.
    fn doubt(&self, cause: &Error) {
        if matches!(cause, Error::Unavailable(_) | Error::Timeout(_)) {
            self.unanswered.notify_one();
        }
    }

    /// Resolves after a write that got no answer: it may have taken effect all the same.
    pub async fn unanswered(&self) {
        self.unanswered.notified().await;
    }

    /// Runs one prepared statement that gives at most one row.
    async fn query_opt(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        Ok(self.query(sql, params).await?.into_iter().next())
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> Result<(), Error> {
        self.query("select 1", &[]).await.map(drop)
    }

    /// Closes the pool: waiting callers fail.
    pub fn close(&self) {
        self.pool.close();
    }
}

/// Ends the use of a connection. One that broke, or whose answer may still come, must serve nobody
/// else: the pool notices a break only when the socket is closed, some milliseconds after the
/// server's last words.
fn give_back<T>(client: Object, outcome: Result<T, Error>) -> Result<T, Error> {
    if matches!(outcome, Err(Error::Unavailable(_) | Error::Timeout(_))) {
        drop(Object::take(client));
    }
    outcome
}

/// Repeats a call that the store asks to repeat: deadlocks and serialisation failures.
///
/// # Errors
/// The last failure, after [`crate::types::limits::RETRIES_MAX`] attempts.
pub async fn retried<T, F>(mut call: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut attempt = 0;
    loop {
        match call().await {
            Err(Error::Retry(cause)) if attempt < crate::types::limits::RETRIES_MAX => {
                attempt += 1;
                tracing::debug!(attempt, %cause, "transaction repeated");
                let spread = rand::random_range(1..=8_u64) * u64::from(attempt);
                tokio::time::sleep(Duration::from_millis(spread)).await;
            }
            other => return other,
        }
    }
}
