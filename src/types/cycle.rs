//! The cycle: state ops, sink appends and settlement that commit together.
//!
//! A request on `/streams/v1/cycle` and a batch folded by the server both become a [`Cycle`] and
//! go through the same function.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::id::{PartitionId, TenantId};

/// One change of a state row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateOp {
    /// Inserts or replaces the whole value.
    Upsert {
        /// Opaque key, at most [`super::limits::STATE_KEY_BYTES_MAX`] bytes.
        key: String,
        /// JSON text.
        value: String,
        /// When a hosted fold wants a flush of this row, Unix ms.
        due_ms: Option<i64>,
    },
    /// Removes the row; a missing one is no error.
    Delete {
        /// Opaque key.
        key: String,
    },
}

impl StateOp {
    /// The key that the op changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Upsert { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// A message to append to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkAppend {
    /// Sink queue, created if missing.
    pub queue: String,
    /// Sink partition, created if missing.
    pub partition: String,
    /// JSON text.
    pub payload: String,
    /// Message id given by the worker; minted where absent.
    pub message_id: Option<Uuid>,
    /// Transaction id; the message id where absent.
    pub transaction_id: Option<String>,
}

/// What happens to the source cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Nothing: an idle-flush cycle (streams A1).
    None,
    /// The whole leased batch is done, the lease ends (A7).
    Completed {
        /// Lease that the pop gave.
        lease: Uuid,
        /// Messages, as reported to counters.
        count: i64,
    },
    /// The first `count` frames are done, the lease stays (A9) unless `release` says otherwise.
    Partial {
        /// Lease that the pop gave.
        lease: Uuid,
        /// Frames to settle.
        count: i64,
        /// Id of the last settled message, to recognise a repeated request (X9).
        last_transaction_id: Option<String>,
        /// Ends the lease: the rest of the batch is claimable at once. Hosted folds only.
        release: bool,
    },
    /// The batch comes again, the lease ends (A15).
    Failed {
        /// Lease that the pop gave.
        lease: Uuid,
        /// Messages, as reported to counters.
        count: i64,
    },
}

/// A message that a fold gave up on, with everything its record shows.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Offset in the source partition.
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
    /// When the message was committed.
    pub created_at: Timestamp,
    /// Why it was given up.
    pub reason: String,
    /// Module, panic text, function names, log lines.
    pub detail: Option<serde_json::Value>,
    /// Deliveries before this verdict.
    pub retries: i32,
}

/// What due times of a query are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timers {
    /// The database's clock.
    Clock,
    /// The partition's watermark.
    Watermark,
}

impl Timers {
    /// The word in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Watermark => "watermark",
        }
    }
}

/// The next batch of the same partition, claimed in the same round trip.
#[derive(Clone, Copy, Debug)]
pub struct NextClaim {
    /// Lease of the next batch.
    pub lease: Uuid,
    /// Messages at most.
    pub batch: i32,
    /// Frame bytes at which the claim stops.
    pub bytes: i64,
    /// Length of the lease, ms.
    pub lease_ms: i64,
}

/// What only a cycle of a hosted fold carries.
#[derive(Clone, Debug)]
pub struct Hosted {
    /// Version of the shard that the fold read; another one refuses the cycle.
    pub expected_version: i64,
    /// What due times are compared with.
    pub timers: Timers,
    /// Silence after which the clock becomes the watermark, ms; 0 never.
    pub idle_ms: i64,
    /// Event-time watermark after this cycle, Unix ms.
    pub watermark_ms: Option<i64>,
    /// Least delay before the shard is looked at again, ms.
    pub backoff_ms: i64,
    /// Messages of the source that this cycle folded.
    pub messages: i64,
    /// Messages counted but left out, by cause.
    pub tallies: BTreeMap<String, u64>,
    /// Claim of the next batch.
    pub next: Option<NextClaim>,
}

/// State ops, sink appends and a settlement: one transaction.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// Tenant of query, source and sinks.
    pub tenant: TenantId,
    /// Wire id of the query.
    pub query_id: Uuid,
    /// Wire id of the source partition.
    pub partition_id: PartitionId,
    /// Consumer group whose cursor moves.
    pub group: String,
    /// Applied in order.
    pub ops: Vec<StateOp>,
    /// Appended in order within each (queue, partition).
    pub emits: Vec<SinkAppend>,
    /// What happens to the cursor.
    pub settlement: Settlement,
    /// Messages given up in this cycle.
    pub dead_letters: Vec<DeadLetter>,
    /// Present for a hosted fold.
    pub hosted: Option<Hosted>,
}

/// Where the messages of one (queue, partition) went.
#[derive(Clone, Debug)]
pub struct AppendReceipt {
    /// Sink queue.
    pub queue: String,
    /// Sink partition.
    pub partition: String,
    /// Offset of the first message, also of a duplicate's original.
    pub base_offset: i64,
    /// Messages stored; 0 where every one was a duplicate.
    pub stored: i64,
    /// Commit time.
    pub created_at: Option<Timestamp>,
}

/// What a settlement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Messages settled; 0 for a failed batch.
    pub count: i64,
    /// Whether the lease ended.
    pub released: bool,
}

/// What a committed cycle did.
#[derive(Clone, Debug)]
pub struct CycleReceipt {
    /// Name of the source queue.
    pub queue_name: String,
    /// Ops executed, deletes that hit nothing included (O7).
    pub ops_applied: usize,
    /// One entry a (queue, partition), in order of first appearance (E5).
    pub appends: Vec<AppendReceipt>,
    /// `None` for a cycle without ack.
    pub settled: Option<Settled>,
    /// Version of the shard after the cycle.
    pub version: i64,
    /// Earliest due time of the shard, Unix ms; hosted folds only.
    pub next_due_ms: Option<i64>,
}
