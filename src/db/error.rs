//! Failures of the store by what a caller can do about them.
//!
//! Made from SQLSTATE and constraint names, never from message text.

use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

/// A refusal that a database function raises on purpose (SQLSTATE class `FQ`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The partition does not exist or is not the caller's (streams Y8).
    PartitionNotFound,
    /// The query does not exist or is not the caller's (streams Y9).
    QueryNotFound,
    /// No lease, another holder, or expired (streams A2).
    LeaseLost,
    /// The caller's dedup knowledge is out of date.
    DedupStale,
    /// Somebody changed the shard since it was read.
    ShardVersion,
    /// A partial ack that was applied before (streams X9).
    AlreadyApplied,
    /// The lease records no batch (streams A8).
    NoBatch,
    /// A sink partition is missing and must be created first.
    SinkMissing,
    /// Two partition names hash to one id.
    PartitionCollision,
}

impl Refusal {
    fn from_code(code: &str) -> Option<Self> {
        Some(match code {
            "FQ001" => Self::PartitionNotFound,
            "FQ002" => Self::QueryNotFound,
            "FQ003" => Self::LeaseLost,
            "FQ004" => Self::DedupStale,
            "FQ005" => Self::ShardVersion,
            "FQ006" => Self::AlreadyApplied,
            "FQ007" => Self::NoBatch,
            "FQ008" => Self::SinkMissing,
            "FQ010" => Self::PartitionCollision,
            _ => return None,
        })
    }
}

/// A failed call of the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Deadlock or serialisation failure: the whole call may be repeated.
    #[error("the transaction must be repeated")]
    Retry(#[source] tokio_postgres::Error),
    /// An expected refusal; nothing was written.
    #[error("refused: {text}")]
    Refused {
        /// Which one.
        refusal: Refusal,
        /// The function's own text.
        text: String,
    },
    /// A constraint by its name.
    #[error("constraint {0} does not hold")]
    Constraint(String, #[source] tokio_postgres::Error),
    /// A value that the store cannot hold, such as U+0000 in text.
    #[error("the store cannot hold a value: {0}")]
    Value(String, #[source] tokio_postgres::Error),
    /// No connection, or it broke: the outcome of a write is unknown.
    #[error("the database is not reachable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The call took longer than the statement timeout.
    #[error("the database did not answer within {0} ms")]
    Timeout(u128),
    /// Stored bytes that no broker wrote.
    #[error("stored data is damaged")]
    Corrupt(#[from] crate::log::Error),
    /// Anything else the server said.
    #[error("the database refused a statement")]
    Other(#[source] tokio_postgres::Error),
}

impl Error {
    /// The refusal, if it is one.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(*refusal),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return if error.is_closed() || std::error::Error::source(&error).is_some() {
                Self::Unavailable(Box::new(error))
            } else {
                Self::Other(error)
            };
        };
        let code = db.code();
        if let Some(refusal) = Refusal::from_code(code.code()) {
            return Self::Refused { refusal, text: db.message().to_owned() };
        }
        if *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
        {
            return Self::Retry(error);
        }
        let text = db.message().to_owned();
        match &code.code()[..2] {
            "08" | "57" if *code != SqlState::QUERY_CANCELED => Self::Unavailable(Box::new(error)),
            "53" => Self::Unavailable(Box::new(error)),
            "23" => Self::Constraint(db.constraint().unwrap_or("unnamed").to_owned(), error),
            "22" | "54" => Self::Value(text, error),
            _ => Self::Other(error),
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Unavailable(Box::new(error)),
            other => Self::Unavailable(Box::new(other)),
        }
    }
}
