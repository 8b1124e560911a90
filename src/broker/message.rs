//! Messages as operators look at them: a listing, and one message by its address.
//!
//! Nothing here changes anything. A listing reads whole segments of the page that it shows and
//! only their heads beyond it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Broker;
use super::progress::{MessageStatus, Progress};
use crate::db::Error;
use crate::db::message::{CursorRow, ListedPartition, ListedSegment, Scope, Stretch};
use crate::db::queue::{Queue, QueueOptions};
use crate::log::Frame;
use crate::types::id::{PartitionId, Pid, TenantId, TxnHash};
use crate::types::limits::{INDEX_WINDOW_S, LIST_WINDOW_S, SEGMENTS_BY_STATUS_MAX};

/// Segments that are unpacked at once.
const SEGMENTS_AT_ONCE: usize = 16;

/// Which messages to list.
#[derive(Clone, Debug, Default)]
pub struct MessageFilter {
    /// Queues and partitions.
    pub scope: Scope,
    /// Only those in this state, of the newest [`SEGMENTS_BY_STATUS_MAX`] segments.
    pub status: Option<MessageStatus>,
    /// Committed at or after it; an hour before the end where absent.
    pub from: Option<Timestamp>,
    /// Committed before it.
    pub to: Option<Timestamp>,
    /// Messages at most.
    pub limit: i64,
    /// Messages to leave out first.
    pub offset: i64,
}

/// A listed message.
#[derive(Clone, Debug)]
pub struct ListedMessage {
    /// Its partition.
    pub partition: Arc<ListedPartition>,
    /// Offset of the first message of its segment.
    pub first_offset: i64,
    /// Place in the segment.
    pub frame_index: i64,
    /// Commit time.
    pub created_at: Timestamp,
    /// The message, its payload opened.
    pub frame: Frame,
    /// Whether the payload was sealed.
    pub encrypted: bool,
    /// State by all cursors.
    pub status: MessageStatus,
    /// State by the cursor of the queue mode.
    pub queue_status: MessageStatus,
    /// Named groups that have passed it.
    pub consumed_by: usize,
    /// Named groups with a cursor on its partition.
    pub groups: usize,
    /// End of the live lease of the queue mode.
    pub leased_until: Option<Timestamp>,
}

/// A page of messages.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Newest first.
    pub messages: Vec<ListedMessage>,
    /// The queue mode has a cursor on one of the partitions.
    pub queue_mode: bool,
    /// Named groups with a cursor on one of the partitions.
    pub groups: usize,
}

/// One message by its address.
#[derive(Clone, Debug)]
pub struct MessageDetail {
    /// Its queue.
    pub queue: Queue,
    /// Name of its partition.
    pub partition: String,
    /// Offset.
    pub offset: i64,
    /// Commit time.
    pub created_at: Timestamp,
    /// The message, its payload opened.
    pub frame: Frame,
    /// Whether the payload was sealed.
    pub encrypted: bool,
    /// State by all cursors.
    pub status: MessageStatus,
    /// Why it was dead-lettered.
    pub reason: Option<String>,
    /// Failed deliveries before that.
    pub retry_count: i32,
    /// Cursors on its partition.
    pub progress: Progress,
}

/// A message of a page whose frame is not read yet.
struct Picked {
    segment: ListedSegment,
    index: i64,
    status: MessageStatus,
}

impl Broker {
    /// A page of messages, newest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn messages(
        &self,
        tenant: TenantId,
        filter: &MessageFilter,
    ) -> Result<Listing, Error> {
        let db = &self.inner.db;
        // Every segment holds a message at least.
        let most = match filter.status {
            Some(_) => SEGMENTS_BY_STATUS_MAX,
            None => filter.offset.saturating_add(filter.limit),
        };
        let (partitions, stretches) = self.stretches(tenant, filter, most).await?;
        let segments = db.message_segments(&stretches, most).await?;
        let dead_in: Vec<Stretch> = segments
            .iter()
            .map(|s| (s.pid, s.first_offset, s.first_offset + i64::from(s.n) - 1))
            .collect();
        let dead: HashSet<(Pid, i64)> = db.message_dead(&dead_in).await?.into_iter().collect();
        let mut pids: Vec<Pid> = segments.iter().map(|s| s.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let progress = by_partition(db.message_cursors(&pids).await?);
        let nobody = Progress::default();

        let mut picked = Vec::new();
        let (mut skip, mut left) = (filter.offset, filter.limit);
        for segment in &segments {
            let cursors = progress.get(&segment.pid).unwrap_or(&nobody);
            for index in (0..i64::from(segment.n)).rev() {
                let offset = segment.first_offset + index;
                let status = cursors.status(offset, dead.contains(&(segment.pid, offset)));
                if left <= 0 || filter.status.is_some_and(|wanted| wanted != status) {
                    continue;
                }
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                left -= 1;
                picked.push(Picked { segment: *segment, index, status });
            }
        }
        let groups: HashSet<&str> = progress.values().flat_map(Progress::groups).collect();
        Ok(Listing {
            messages: self.read(&picked, &partitions, &progress).await?,
            queue_mode: progress.values().any(|p| p.queue_mode().is_some()),
            groups: groups.len(),
        })
    }

    /// The partitions of a listing, and which offsets of them it covers.
    async fn stretches(
        &self,
        tenant: TenantId,
        filter: &MessageFilter,
        most: i64,
    ) -> Result<(HashMap<Pid, Arc<ListedPartition>>, Vec<Stretch>), Error> {
        let db = &self.inner.db;
        let from = match filter.from {
            Some(from) => from,
            None => self.ago(filter.to, LIST_WINDOW_S).await?,
        };
        // Without an end, the newest messages stand in the partitions that were written last.
        let most = filter.to.is_none().then_some(most);
        let partitions = db.message_partitions(tenant, &filter.scope, from, most).await?;
        let at = |at: Timestamp| partitions.iter().map(|p| (p.pid, at)).collect::<Vec<_>>();
        let firsts = db.offsets_at(&at(from)).await?;
        let ends = match filter.to {
            Some(to) => db.offsets_at(&at(to)).await?,
            None => partitions.iter().map(|p| p.next_offset).collect(),
        };
        let stretches =
            partitions.iter().zip(firsts).zip(ends).map(|((p, first), end)| (p.pid, first, end));
        let stretches = stretches.collect();
        Ok((partitions.into_iter().map(|p| (p.pid, Arc::new(p))).collect(), stretches))
    }

    /// So many seconds before an instant, or before now by the database's clock.
    async fn ago(&self, end: Option<Timestamp>, seconds: i64) -> Result<Timestamp, Error> {
        let end = match end {
            Some(end) => end,
            None => {
                let now = self.inner.db.clock_ms().await?;
                Timestamp::from_millisecond(now).unwrap_or(Timestamp::MAX)
            }
        };
        Ok(end.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN))
    }

    /// Reads the frames of a page, some segments at a time.
    async fn read(
        &self,
        picked: &[Picked],
        partitions: &HashMap<Pid, Arc<ListedPartition>>,
        progress: &HashMap<Pid, Progress>,
    ) -> Result<Vec<ListedMessage>, Error> {
        let nobody = Progress::default();
        let mut out = Vec::with_capacity(picked.len());
        let by_segment: Vec<&[Picked]> = picked.chunk_by(|a, b| a.segment == b.segment).collect();
        for chunk in by_segment.chunks(SEGMENTS_AT_ONCE) {
            let wanted: Vec<(Pid, i64)> =
                chunk.iter().map(|p| (p[0].segment.pid, p[0].segment.first_offset)).collect();
            let frames = self.inner.db.message_frames(&wanted).await?;
            let frames: HashMap<(Pid, i64), Vec<Frame>> =
                frames.into_iter().map(|(pid, first, frames)| ((pid, first), frames)).collect();
            for p in chunk.iter().copied().flatten() {
                let (pid, first_offset) = (p.segment.pid, p.segment.first_offset);
                // Retention may have removed the segment since it was listed.
                let stored = frames.get(&(pid, first_offset));
                let frame = stored.and_then(|f| f.get(usize::try_from(p.index).ok()?));
                let (Some(frame), Some(partition)) = (frame, partitions.get(&pid)) else {
                    continue;
                };
                let cursors = progress.get(&pid).unwrap_or(&nobody);
                let offset = first_offset + p.index;
                let (frame, encrypted) = self.opened(frame.clone());
                out.push(ListedMessage {
                    partition: Arc::clone(partition),
                    first_offset,
                    frame_index: p.index,
                    created_at: p.segment.created_at,
                    frame,
                    encrypted,
                    status: p.status,
                    queue_status: cursors.queue_status(offset),
                    consumed_by: cursors.consumed_by(offset),
                    groups: cursors.groups().count(),
                    leased_until: cursors.queue_mode().and_then(|c| c.leased_until),
                });
            }
        }
        Ok(out)
    }

    /// Opens the payload of a frame; whether it was sealed.
    fn opened(&self, mut frame: Frame) -> (Frame, bool) {
        let opened = self.inner.seal.open(frame.payload.clone());
        let encrypted = opened != frame.payload;
        frame.payload = opened;
        (frame, encrypted)
    }

    /// A message by its address: inside the index window, or as a dead letter.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn message(
        &self,
        tenant: TenantId,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Option<MessageDetail>, Error> {
        let (db, pid) = (&self.inner.db, partition.pid());
        let found = db.partition_find(partition).await?;
        let Some((name, queue)) = found.filter(|(_, queue)| queue.tenant == tenant) else {
            return Ok(None);
        };
        let window_s = index_window_s(&queue.options);
        let from = db.offsets_at(&[(pid, self.ago(None, window_s).await?)]).await?;
        let hash = TxnHash::of(transaction_id);
        let offset = db.message_find(pid, hash, from.first().copied().unwrap_or(0)).await?;
        let stored = match offset {
            Some(offset) => db.frame_at(pid, offset, 0).await?.map(|stored| (offset, stored)),
            None => None,
        };
        let stored = stored.filter(|(_, s)| s.frame.transaction_id() == transaction_id);
        let record = db.dead_letter_newest(tenant, pid, transaction_id).await?;
        let (offset, created_at, frame) = match (stored, &record) {
            (Some((offset, stored)), _) => (offset, stored.created_at, stored.frame),
            (None, Some(r)) => (
                r.offset,
                r.created_at,
                Frame {
                    message_id: r.message_id,
                    transaction_id: Some(r.transaction_id.clone()),
                    trace_id: r.trace_id,
                    producer_sub: r.producer_sub.clone(),
                    payload: r.payload.clone(),
                },
            ),
            (None, None) => return Ok(None),
        };
        let progress = Progress::of(db.message_cursors(&[pid]).await?);
        let dead = !db.message_dead(&[(pid, offset, offset)]).await?.is_empty();
        let record = record.filter(|r| r.offset == offset);
        let (frame, encrypted) = self.opened(frame);
        Ok(Some(MessageDetail {
            queue,
            partition: name,
            offset,
            created_at,
            frame,
            encrypted,
            status: progress.status(offset, dead || record.is_some()),
            retry_count: record.as_ref().map_or(0, |r| r.retry_count),
            reason: record.and_then(|r| r.reason),
            progress,
        }))
    }
}

/// How long a message can be found by its transaction id (control-plane 17).
fn index_window_s(options: &QueueOptions) -> i64 {
    let longest = options.dedup_window_s.max(options.completed_retention_s);
    i64::from(longest).max(INDEX_WINDOW_S)
}

fn by_partition(rows: Vec<CursorRow>) -> HashMap<Pid, Progress> {
    let mut out: HashMap<Pid, Vec<CursorRow>> = HashMap::new();
    for row in rows {
        out.entry(row.pid).or_default().push(row);
    }
    out.into_iter().map(|(pid, rows)| (pid, Progress::of(rows))).collect()
}
