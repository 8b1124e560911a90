//! The plain types that cross the boundary between broker and fold.
//!
//! They mirror `wit/fold.wit` one to one and exist on every target, so that folds and their tests
//! compile without WebAssembly. Text is UTF-8, times are Unix milliseconds, documents are JSON.

/// One message of the source partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Position in the source partition: the order of the fold, and what an ack names.
    pub offset: u64,
    /// The producer's idempotency key, or the message id.
    pub transaction_id: String,
    /// The broker's stamp: the only clock a message brings besides its payload.
    pub created_at: i64,
    /// The payload as the producer spelled it.
    pub payload: String,
}

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// Name of the query.
    pub query: String,
    /// Name of the source partition.
    pub partition: String,
    /// Id of the source partition.
    pub partition_id: String,
    /// The params document of the registration, verbatim; empty where none was given.
    pub params: String,
    /// In start: what [`Manifest::clock`] says. In flush: the tick that the host recorded.
    pub now: i64,
    /// Event-time watermark that the last committed outcome of this partition left, if any.
    pub watermark: Option<i64>,
}

/// One state row of (query, partition).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The row's key.
    pub key: String,
    /// The row's value, JSON text.
    pub value: String,
}

/// State rows to read before the fold goes on: the union of the three.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reads {
    /// Exact keys, sorted and unique.
    pub keys: Vec<String>,
    /// Key prefixes; the empty prefix is the whole shard.
    pub prefixes: Vec<String>,
    /// Rows whose due time is at or before this instant.
    pub due: Option<i64>,
}

/// Writes one state row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// The row's key.
    pub key: String,
    /// The row's new value, JSON text.
    pub value: String,
    /// When this row wants a flush, compared with what [`Manifest::timers`] says.
    pub due_at: Option<i64>,
}

/// One change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Inserts or replaces a row.
    Upsert(Upsert),
    /// Removes the row of this key.
    Delete(String),
}

/// A message that the fold sends to a sink queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emit {
    /// A queue of [`Manifest::sinks`].
    pub queue: String,
    /// Partition of that queue.
    pub partition: String,
    /// JSON text.
    pub payload: String,
    /// None: derived by the host from query, partition, offsets and index, so that a replay is
    /// recognised.
    pub transaction_id: Option<String>,
}

/// A message of the batch that can never be folded: it goes to the dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Index in the batch.
    pub index: u32,
    /// Why it cannot be folded.
    pub reason: String,
}

/// Messages that were counted but left out of the result, by cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Why they were left out, a short word such as `late`.
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// How much of the batch is consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// The whole batch.
    #[default]
    All,
    /// Only the first messages (a gate closed); the rest stays, in order.
    Prefix {
        /// How many messages are consumed.
        count: u32,
        /// When it is worth trying again.
        retry_after_ms: Option<u32>,
    },
}

/// The result of a call; all of it commits in one transaction or nothing does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// State changes, applied in order.
    pub ops: Vec<Op>,
    /// Messages for sink queues, in order.
    pub emits: Vec<Emit>,
    /// Messages for the dead letters.
    pub rejects: Vec<Reject>,
    /// Counts of what was left out.
    pub tallies: Vec<Tally>,
    /// How much of the batch is consumed; ignored after a flush.
    pub ack: Ack,
    /// The partition's new watermark; None leaves it as it is.
    pub watermark: Option<i64>,
}

/// What a call answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fetch these rows, then call resume on the same instance.
    Need(Reads),
    /// The call is finished.
    Done(Outcome),
}

/// A call that commits nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The batch comes again after a growing delay.
    Retry(String),
    /// The query stops until an operator acts.
    Halt(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Retry(text) => write!(f, "retry: {text}"),
            Self::Halt(text) => write!(f, "halt: {text}"),
        }
    }
}

impl std::error::Error for Failure {}

/// What [`Context::now`] is in start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The largest created-at of the batch, so that a replay is exact.
    #[default]
    Messages,
    /// The broker's clock at the claim, recorded with the cycle; for gates and rate limits.
    Host,
}

/// What [`Upsert::due_at`] is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timers {
    /// The partition's event-time watermark.
    Watermark,
    /// The broker's clock.
    #[default]
    Clock,
}

/// What a fold says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Manifest {
    /// Name of the fold; the export macro fills in the package name where it is empty.
    pub name: String,
    /// Version of the fold; the export macro fills in the package version where it is empty.
    pub version: String,
    /// What now is in start.
    pub clock: Clock,
    /// What due times are compared with.
    pub timers: Timers,
    /// Queues this fold may emit to; anything else is refused before the commit.
    pub sinks: Vec<String>,
    /// The largest batch it wants, 0 for the host's default.
    pub max_batch: u32,
    /// With watermark timers: silence of a partition, in ms, after which flush takes the host's
    /// clock as watermark. 0: never.
    pub idle_ms: u32,
}

/// How important a log line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For the author of the fold.
    Debug,
    /// For the operator, nothing to do.
    Info,
    /// For the operator, worth a look.
    Warn,
    /// Something is broken.
    Error,
}
