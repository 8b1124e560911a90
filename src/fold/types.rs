//! The plain types that cross the layer's boundary, whatever version of the interface a guest
//! speaks.
//!
//! What goes to a guest is borrowed ([`Message`], [`Entry`]), because a batch of a thousand
//! messages is passed without copying a payload on the host's side. What a guest returned is owned,
//! and has been checked before it leaves the layer ([`super::outcome`]). All times are Unix
//! milliseconds.

use serde::{Deserialize, Serialize};

/// State key of the watermark row, which belongs to the broker: a guest never writes it.
pub const WATERMARK_KEY: &str = "__wm__";

/// What a call knows besides its messages and rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Name of the query.
    pub query: String,
    /// Name of the source partition.
    pub partition: String,
    /// Id of the source partition.
    pub partition_id: String,
    /// The params document of the registration, verbatim; empty where none was given.
    pub params: String,
    /// In `start` what [`Manifest::clock`] says, in `flush` the tick that the caller recorded. Unix
    /// ms.
    pub now: i64,
    /// Watermark that the last committed outcome of this partition left, if any. Unix ms.
    pub watermark: Option<i64>,
}

/// One message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Message<'a> {
    /// Position in the source partition.
    pub offset: u64,
    /// The producer's transaction id.
    pub transaction_id: &'a str,
    /// The broker's stamp, Unix ms.
    pub created_at: i64,
    /// The payload as the producer spelled it.
    pub payload: &'a str,
}

/// One state row of (query, partition).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Entry<'a> {
    /// Key of the row.
    pub key: &'a str,
    /// Value as JSON text.
    pub value: &'a str,
}

/// State rows that a fold wants before it goes on: the union of the three.
///
/// The answer holds the rows that exist, in key order, each once, without [`WATERMARK_KEY`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reads {
    /// Single keys, sorted and unique.
    pub keys: Vec<String>,
    /// Key prefixes, sorted and unique; `""` is the whole shard.
    pub prefixes: Vec<String>,
    /// Rows whose due time is at or before this instant. Unix ms.
    pub due: Option<i64>,
}

/// One change of the state; several of one outcome apply in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Writes a row.
    Upsert {
        /// Key of the row.
        key: String,
        /// Value as JSON text, free of U+0000.
        value: String,
        /// When the row wants a flush (Unix ms); `None` leaves it to the number at
        /// `value.windowEnd`.
        due_at: Option<i64>,
    },
    /// Deletes a row, if it exists.
    Delete {
        /// Key of the row.
        key: String,
    },
}

impl Op {
    /// The key that this op changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Upsert { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// A message to send when the cycle commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emit {
    /// Queue that receives it: one of [`Manifest::sinks`].
    pub queue: String,
    /// Partition of that queue.
    pub partition: String,
    /// Payload as JSON text.
    pub payload: String,
    /// `None`: the caller derives one, so that a replay is recognised.
    pub transaction_id: Option<String>,
}

/// A message that can never be folded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// Index in the batch.
    pub index: u32,
    /// The guest's reason, cut to [`super::Limits::text_bytes`].
    pub reason: String,
}

/// Messages that were counted but left out of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Short name of the cause, for metrics.
    pub cause: String,
    /// How many.
    pub count: u64,
}

/// How much of the batch is consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ack {
    /// All of it.
    All,
    /// The first messages only; the rest stays, in order.
    Prefix {
        /// How many messages are consumed.
        count: u32,
        /// When to try the rest again, in ms from now; `None` leaves it to the host.
        retry_after_ms: Option<u32>,
    },
}

/// What a fold returned, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Changes of the state, in order.
    pub ops: Vec<Op>,
    /// Messages to send, in order.
    pub emits: Vec<Emit>,
    /// Messages that go to the dead letters, sorted by index.
    pub rejects: Vec<Reject>,
    /// Messages left out, by cause.
    pub tallies: Vec<Tally>,
    /// How much of the batch is consumed.
    pub ack: Ack,
    /// The new watermark, never below [`Context::watermark`]. Unix ms.
    pub watermark: Option<i64>,
}

impl Outcome {
    /// How many messages of a batch are consumed.
    pub fn acked(&self, batch_len: usize) -> usize {
        match self.ack {
            Ack::All => batch_len,
            Ack::Prefix { count, .. } => {
                batch_len.min(usize::try_from(count).unwrap_or(usize::MAX))
            }
        }
    }
}

/// The clock that [`Context::now`] is read from in `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The largest `created_at` of the batch, so that a replay is exact.
    Messages,
    /// The broker's clock at the claim, recorded with the cycle.
    Host,
}

/// What due times are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timers {
    /// The partition's watermark.
    Watermark,
    /// The broker's clock.
    Clock,
}

/// A module's own description, for given params.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the fold; may be empty.
    pub name: String,
    /// Version of the fold; may be empty.
    pub version: String,
    /// Where `now` comes from.
    pub clock: Clock,
    /// What due times are compared with.
    pub timers: Timers,
    /// Queues that it may emit to, sorted and unique.
    pub sinks: Vec<String>,
    /// The largest batch it wants in messages; 0 for the host's default.
    pub max_batch: u32,
    /// Silence of a partition in ms after which `flush` takes the host's clock as watermark; 0
    /// never.
    pub idle_ms: u32,
}

/// Weight of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// For the author of the fold.
    Debug,
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warn,
    /// Something failed.
    Error,
}

/// One line that a guest logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Weight of the line.
    pub level: Level,
    /// Its text, cut to [`super::Limits::log_line_bytes`].
    pub text: String,
}

/// What a batch logged, bounded by [`super::Limits::log_lines`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Logs {
    /// The first lines, in order.
    pub lines: Vec<LogLine>,
    /// Lines that were dropped after them.
    pub dropped_lines: u64,
    /// Bytes dropped: whole lines and the ends of cut ones.
    pub dropped_bytes: u64,
}

impl Logs {
    /// A sentence that says how much was dropped, if anything was.
    pub fn note(&self) -> Option<String> {
        (self.dropped_bytes > 0 || self.dropped_lines > 0).then(|| {
            format!(
                "{} lines and {} bytes of log were dropped",
                self.dropped_lines, self.dropped_bytes
            )
        })
    }
}

/// What a batch cost on this host; no part of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of the calling threads inside guest calls, in microseconds (wall time where the
    /// system can't tell). Systems count it in steps of up to some ms: sum it over many batches.
    pub cpu_us: u64,
    /// Wall time inside guest calls, in microseconds; waiting for state rows is not counted.
    pub wall_us: u64,
    /// The largest size that the guest's memory had, in bytes.
    pub peak_memory_bytes: u64,
    /// Rounds of `need`.
    pub rounds: u32,
}

/// What a call of the fold came to.
#[derive(Debug)]
pub enum Progress {
    /// Fetch these rows, then call [`super::Suspended::resume`].
    Need(Reads, super::Suspended),
    /// The fold is done.
    Done(Finished),
}

/// A finished fold of one batch, or one flush.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finished {
    /// What is to be committed.
    pub outcome: Outcome,
    /// What the guest logged.
    pub logs: Logs,
    /// What it cost.
    pub usage: Usage,
}
