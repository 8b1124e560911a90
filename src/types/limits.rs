//! Every bound of the broker as a named constant.
//!
//! Bounds of guests stand in [`crate::fold::Limits`], because they can be set.

/// Longest queue, partition, group or query name, bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest transaction id, bytes (data-plane 1.4).
pub const TRANSACTION_ID_BYTES_MAX: usize = 65_535;
/// Default largest request body, bytes (data-plane 1.1).
pub const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Default message budget of a pop.
pub const POP_BATCH: i32 = 200;
/// Message budget of a pop whose batch the broker chooses.
pub const POP_BATCH_AUTOPILOT: i32 = 100;
/// Most partitions that one pop claims, whatever it asks for.
pub const POP_PARTITIONS_MAX: i32 = 64;
/// Largest message budget of a pop; a larger wish is served as this one.
pub const POP_BATCH_MAX: i32 = 10_000;
/// Default long-poll window, ms.
pub const POP_TIMEOUT_MS: u64 = 30_000;
/// Longest lease, s: a year. A longer wish is served as this one.
pub const LEASE_S_MAX: i64 = 31_536_000;
/// Default length of an extension, s.
pub const EXTEND_S: i64 = 60;
/// Lease time of a queue that nobody configured, s.
pub const IMPLICIT_LEASE_S: i32 = 60;
/// Lease time of a configured queue, s.
pub const CONFIGURED_LEASE_S: i32 = 300;
/// Frames after which a segment is closed. A pop of one message reads a whole segment.
pub const SEGMENT_FRAMES_MAX: usize = 1_000;
/// Frame bytes after which a segment is closed. One larger message makes a segment of its own.
pub const SEGMENT_RAW_BYTES_MAX: usize = 1024 * 1024;
/// Appends of different partitions that share a transaction at most.
pub const APPENDS_PER_COMMIT_MAX: usize = 64;
/// Cycles that share a transaction at most: the gain is small beyond 8, the call gets longer.
pub const CYCLES_PER_COMMIT_MAX: usize = 16;
/// Attempts of a transaction that the store asks to repeat (deadlock, serialisation).
pub const RETRIES_MAX: u32 = 5;
/// Transaction hashes that the dedup indexes of a broker hold in all, about 40 bytes each.
pub const DEDUP_HASHES_MAX: usize = 4_000_000;
/// Largest state value of an outside worker, bytes.
pub const STATE_VALUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest state key, bytes: an index entry must fit a page.
pub const STATE_KEY_BYTES_MAX: usize = 2_048;
/// Frame bytes of one hosted batch (`wasm-notes.md` section 11).
pub const HOSTED_BATCH_BYTES_MAX: i64 = 4 * 1024 * 1024;
/// Messages of one hosted batch where neither query nor module says otherwise.
pub const HOSTED_BATCH: i32 = 1_000;
/// Lease of a hosted batch, ms: how long a killed broker's partitions wait. Renewed for longer
/// work.
pub const HOSTED_LEASE_MS: i64 = 10_000;
/// Longest work on one hosted batch, renewals included, ms; then its commit is refused.
pub const HOSTED_BATCH_MS_MAX: u64 = 120_000;
/// Rows that one page of a listing shows at most; a larger wish is served as this one.
pub const LIST_ROWS_MAX: i64 = 10_000;
/// Window of a listing of messages that names none, s.
pub const LIST_WINDOW_S: i64 = 3_600;
/// Segments that a listing of messages in one state looks through.
pub const SEGMENTS_BY_STATUS_MAX: i64 = 1_000;
/// Least time for which a message can be found by its transaction id, s.
pub const INDEX_WINDOW_S: i64 = 900;
