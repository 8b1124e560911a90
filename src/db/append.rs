//! Appends to partitions, and what duplicate detection reads.

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Db, Error};
use crate::log::{Frame, Segment};
use crate::types::id::Pid;

/// A segment for one partition.
#[derive(Clone, Debug)]
pub struct Append {
    /// Target.
    pub pid: Pid,
    /// Frames.
    pub segment: Segment,
    /// Offset below which the caller knows the hashes of the window; `None` without dedup.
    pub known: Option<i64>,
    /// Length of the dedup window, ms.
    pub window_ms: i64,
}

/// What became of an [`Append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Committed at these offsets.
    At {
        /// Offset of the first frame.
        base_offset: i64,
        /// Commit time, never earlier than that of the partition's last segment.
        created_at: Timestamp,
    },
    /// No such partition; nothing written.
    Missing,
    /// Others appended a hash of this segment meanwhile; nothing written.
    Stale,
}

/// Hashes of one stored segment.
#[derive(Clone, Debug)]
pub struct SegmentHashes {
    /// Offset of the first frame.
    pub first_offset: i64,
    /// Commit time.
    pub created_at: Timestamp,
    /// 16 bytes a frame.
    pub hashes: Vec<u8>,
}

/// The dedup window of one partition, as far as it was asked for.
#[derive(Clone, Debug)]
pub struct Window {
    /// Partition.
    pub pid: Pid,
    /// Next offset of the partition when it was read; 0 where it does not exist.
    pub next_offset: i64,
    /// Segments inside the window, ascending.
    pub segments: Vec<SegmentHashes>,
}

/// One stored message.
#[derive(Clone, Debug)]
pub struct StoredFrame {
    /// The message.
    pub frame: Frame,
    /// Commit time.
    pub created_at: Timestamp,
    /// Whether it is younger than the window that was asked about.
    pub inside: bool,
}

/// The columns of appends, as the database functions take them.
#[derive(Debug, Default)]
pub(super) struct AppendColumns<'a> {
    pub(super) pid: Vec<i64>,
    pub(super) n: Vec<i32>,
    pub(super) raw: Vec<i32>,
    pub(super) first_id: Vec<Uuid>,
    pub(super) last_id: Vec<Uuid>,
    pub(super) hashes: Vec<&'a [u8]>,
    pub(super) payload: Vec<&'a [u8]>,
    pub(super) known: Vec<Option<i64>>,
    pub(super) window_ms: Vec<i64>,
}

impl<'a> AppendColumns<'a> {
    pub(super) fn push(&mut self, append: &'a Append) {
        self.pid.push(append.pid.0);
        self.n.push(append.segment.n);
        self.raw.push(append.segment.raw_bytes);
        self.first_id.push(append.segment.first_id);
        self.last_id.push(append.segment.last_id);
        self.hashes.push(&append.segment.hashes);
        self.payload.push(&append.segment.payload);
        self.known.push(append.known);
        self.window_ms.push(append.window_ms);
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 9] {
        [
            &self.pid,
            &self.n,
            &self.raw,
            &self.first_id,
            &self.last_id,
            &self.hashes,
            &self.payload,
            &self.known,
            &self.window_ms,
        ]
    }
}

fn outcome(row: &Row) -> Appended {
    match row.get::<_, &str>("status") {
        "queued" => Appended::At { base_offset: row.get("base_offset"), created_at: row.get("at") },
        "stale" => Appended::Stale,
        _ => Appended::Missing,
    }
}

/// Appends segments inside a transaction of the caller, sorted by pid.
pub(super) async fn push_in_txn(
    client: &impl GenericClient,
    appends: &[Append],
) -> Result<Vec<Appended>, Error> {
    debug_assert!(appends.is_sorted_by(|a, b| a.pid <= b.pid), "lock order of partition rows");
    let mut columns = AppendColumns::default();
    for append in appends {
        columns.push(append);
    }
    let statement = client.prepare_cached(include_str!("sql/push_many.sql")).await?;
    let rows = client.query(&statement, &columns.params()).await?;
    Ok(rows.iter().map(outcome).collect())
}

impl Db {
    /// Appends each segment with an outcome of its own, all in one transaction.
    ///
    /// The caller sorts by pid; segments of one pid are stored together or not at all.
    ///
    /// # Errors
    /// When the store fails: then nothing was written, or the outcome is unknown
    /// ([`Error::Unavailable`], [`Error::Timeout`]).
    pub async fn push_many(&self, appends: &[Append]) -> Result<Vec<Appended>, Error> {
        debug_assert!(appends.is_sorted_by(|a, b| a.pid <= b.pid), "lock order of partition rows");
        let mut c = AppendColumns::default();
        for append in appends {
            c.push(append);
        }
        let params = c.params();
        let rows = super::retried(|| self.query(include_str!("sql/push_many.sql"), &params))
            .await
            .inspect_err(|cause| self.doubt(cause))?;
        Ok(rows.iter().map(outcome).collect())
    }

    /// The hashes inside the dedup windows of partitions: (pid, first offset to read, window ms).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dedup_load(&self, wanted: &[(Pid, i64, i64)]) -> Result<Vec<Window>, Error> {
        let pids: Vec<i64> = wanted.iter().map(|w| w.0.0).collect();
        let from: Vec<i64> = wanted.iter().map(|w| w.1).collect();
        let windows: Vec<i64> = wanted.iter().map(|w| w.2).collect();
        let rows =
            self.query(include_str!("sql/dedup_load.sql"), &[&pids, &from, &windows]).await?;
        let mut out: Vec<Window> = Vec::with_capacity(wanted.len());
        for row in &rows {
            let pid = Pid(row.get("pid"));
            if out.last().is_none_or(|w| w.pid != pid) {
                let next_offset = row.get("next_offset");
                out.push(Window { pid, next_offset, segments: Vec::new() });
            }
            let (Some(window), Some(first_offset)) =
                (out.last_mut(), row.get::<_, Option<i64>>("first_offset"))
            else {
                continue;
            };
            window.segments.push(SegmentHashes {
                first_offset,
                created_at: row.get("created_at"),
                hashes: row.get("hashes"),
            });
        }
        Ok(out)
    }

    /// The message at an offset, if it is retained.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the segment cannot be read; others when the store fails.
    pub async fn frame_at(
        &self,
        pid: Pid,
        offset: i64,
        window_ms: i64,
    ) -> Result<Option<StoredFrame>, Error> {
        let row = self
            .query_opt(include_str!("sql/segment_at.sql"), &[&pid.0, &offset, &window_ms])
            .await?;
        row.as_ref().map_or(Ok(None), |row| stored_frame(row, offset))
    }
}

/// The message at an offset, read inside a transaction of the caller.
pub(super) async fn frame_in_txn(
    client: &impl GenericClient,
    pid: Pid,
    offset: i64,
) -> Result<Option<StoredFrame>, Error> {
    let statement = client.prepare_cached(include_str!("sql/segment_at.sql")).await?;
    let row = client.query_opt(&statement, &[&pid.0, &offset, &0_i64]).await?;
    row.as_ref().map_or(Ok(None), |row| stored_frame(row, offset))
}

fn stored_frame(row: &Row, offset: i64) -> Result<Option<StoredFrame>, Error> {
    let first: i64 = row.get("first_offset");
    let mut frames = crate::log::segment::decode(row.get("payload"), row.get("n"))?;
    let at = usize::try_from(offset - first).expect("the statement bounds the offset");
    Ok((at < frames.len()).then(|| StoredFrame {
        frame: frames.swap_remove(at),
        created_at: row.get("created_at"),
        inside: row.get("inside"),
    }))
}
