//! Many appends, one commit.
//!
//! A worker takes everything that waits (without a timer: the batch is what came in while the
//! last commit ran), merges what goes to one partition into one segment, and commits it with the
//! rest. Each caller keeps its own outcome. One partition is in the hands of one worker at a time,
//! so ids are minted in the order of offsets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;

use jiff::Timestamp;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::{Broker, Inner};
use crate::db::append::{Append, Appended};
use crate::db::queue::NewPartition;
use crate::db::{Error, Refusal};
use crate::log::{Frame, SegmentBuilder};
use crate::types::id::{Pid, TxnHash};
use crate::types::limits::{
    APPENDS_PER_COMMIT_MAX, RETRIES_MAX, SEGMENT_FRAMES_MAX, SEGMENT_RAW_BYTES_MAX,
};

/// Bytes that one commit carries at most, unless a single request is larger.
const COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A message that is to be stored.
#[derive(Clone, Debug)]
pub(super) struct NewMessage {
    pub(super) message_id: Option<Uuid>,
    pub(super) transaction_id: Option<String>,
    pub(super) trace_id: Option<Uuid>,
    pub(super) producer_sub: Option<String>,
    pub(super) payload: String,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Id of the message, or of the original.
    pub message_id: Uuid,
    /// Offset of the message, or of the original.
    pub offset: i64,
    /// Nothing was written: the window holds the transaction id already.
    pub duplicate: bool,
}

/// Why messages of one partition could not be stored.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The store failed, or its answer was lost.
    #[error("the store failed: {0}")]
    Store(String),
    /// The broker is stopping.
    #[error("the broker is stopping")]
    Stopping,
}

pub(super) type Reply = oneshot::Sender<Result<Vec<Stored>, AppendError>>;

struct Pending {
    messages: Vec<NewMessage>,
    bytes: usize,
    reply: Reply,
}

struct Lane {
    partition: NewPartition,
    window_ms: i64,
    waiting: VecDeque<Pending>,
}

#[derive(Default)]
struct Queue {
    lanes: HashMap<Pid, Lane>,
    order: VecDeque<Pid>,
    busy: HashSet<Pid>,
    stopping: bool,
}

/// The appends that wait.
#[derive(Default)]
pub(super) struct Appender {
    queue: Mutex<Queue>,
    work: Notify,
}

/// What one worker took: a partition and its requests.
struct Taken {
    partition: NewPartition,
    window_ms: i64,
    requests: Vec<Pending>,
}

impl Appender {
    /// Hands messages of one partition in; the answer comes when their fate is known.
    pub(super) fn submit(
        &self,
        partition: NewPartition,
        window_ms: i64,
        messages: Vec<NewMessage>,
    ) -> oneshot::Receiver<Result<Vec<Stored>, AppendError>> {
        let (reply, answer) = oneshot::channel();
        let bytes = messages.iter().map(|m| m.payload.len() + 64).sum();
        let mut queue = self.queue.lock().expect("no holder panics");
        if queue.stopping {
            let _ = reply.send(Err(AppendError::Stopping));
            return answer;
        }
        let pid = partition.pid();
        let lane = queue.lanes.entry(pid).or_insert_with(|| Lane {
            partition,
            window_ms,
            waiting: VecDeque::new(),
        });
        lane.window_ms = window_ms;
        lane.waiting.push_back(Pending { messages, bytes, reply });
        if lane.waiting.len() == 1 && !queue.busy.contains(&pid) {
            queue.order.push_back(pid);
        }
        drop(queue);
        self.work.notify_one();
        answer
    }

    fn take(&self) -> Vec<Taken> {
        let mut queue = self.queue.lock().expect("no holder panics");
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < APPENDS_PER_COMMIT_MAX && bytes < COMMIT_BYTES_MAX {
            let Some(pid) = queue.order.pop_front() else { break };
            let Some(lane) = queue.lanes.get_mut(&pid) else { continue };
            let mut requests = Vec::new();
            let (mut frames, mut raw) = (0, 0);
            while let Some(next) = lane.waiting.front() {
                let full = frames + next.messages.len() > SEGMENT_FRAMES_MAX
                    || raw + next.bytes > SEGMENT_RAW_BYTES_MAX;
                if full && !requests.is_empty() {
                    break;
                }
                frames += next.messages.len();
                raw += next.bytes;
                requests.push(lane.waiting.pop_front().expect("there is a front"));
            }
            bytes += raw;
            let (partition, window_ms) = (lane.partition.clone(), lane.window_ms);
            queue.busy.insert(pid);
            taken.push(Taken { partition, window_ms, requests });
        }
        if !queue.order.is_empty() {
            self.work.notify_one();
        }
        taken
    }

    fn done(&self, pids: &[Pid]) {
        let mut queue = self.queue.lock().expect("no holder panics");
        for pid in pids {
            queue.busy.remove(pid);
            match queue.lanes.get(pid) {
                Some(lane) if lane.waiting.is_empty() => {
                    queue.lanes.remove(pid);
                }
                Some(_) => queue.order.push_back(*pid),
                None => {}
            }
        }
        if !queue.order.is_empty() {
            self.work.notify_one();
        }
    }

    /// Refuses new work; what waits is still done.
    pub(super) fn close(&self) {
        self.queue.lock().expect("no holder panics").stopping = true;
        self.work.notify_waiters();
        self.work.notify_one();
    }

    fn drained(&self) -> bool {
        let queue = self.queue.lock().expect("no holder panics");
        queue.stopping && queue.order.is_empty()
    }
}

impl Broker {
    /// One worker; runs until the appender is closed and empty.
    pub(super) async fn append_loop(self) {
        loop {
            let taken = self.inner.appender.take();
            if taken.is_empty() {
                if self.inner.appender.drained() {
                    self.inner.appender.work.notify_one();
                    return;
                }
                self.inner.appender.work.notified().await;
                continue;
            }
            let pids: Vec<Pid> = taken.iter().map(|t| t.partition.pid()).collect();
            self.append(taken).await;
            self.inner.appender.done(&pids);
        }
    }

    /// Stores what was taken, and answers.
    async fn append(&self, mut todo: Vec<Taken>) {
        self.inner.metrics.batches.with_label_values(&["push"]).inc();
        let items: usize = todo.iter().map(|t| t.requests.len()).sum();
        self.inner.metrics.batch_items.with_label_values(&["push"]).inc_by(items as u64);
        todo.sort_by_key(|t| t.partition.pid());
        let Err(cause) = self.append_together(&mut todo).await else { return };
        if todo.len() == 1 || matches!(cause, Error::Unavailable(_) | Error::Timeout(_)) {
            return fail(todo, &cause);
        }
        // Nothing of this was written. Each partition by itself: what one of them refuses must not
        // cost its neighbours anything (data-plane 22).
        for taken in todo {
            let mut alone = vec![taken];
            if let Err(cause) = self.append_together(&mut alone).await {
                fail(alone, &cause);
            }
        }
    }

    /// Attempts until everything is stored; leaves in `todo` what is not.
    async fn append_together(&self, todo: &mut Vec<Taken>) -> Result<(), Error> {
        for attempt in 0..=RETRIES_MAX {
            self.append_once(todo).await.inspect_err(|cause| {
                self.inner.metrics.db_errors.inc();
                tracing::debug!(cause = %crate::telemetry::chain(cause), attempt, "append failed");
            })?;
            if todo.is_empty() {
                return Ok(());
            }
        }
        let text = "the partition changed during every attempt".to_owned();
        Err(Error::Refused { refusal: Refusal::DedupStale, text })
    }

    /// One attempt; leaves in `todo` what must be tried again.
    async fn append_once(&self, todo: &mut Vec<Taken>) -> Result<(), Error> {
        let inner = &self.inner;
        let windows: Vec<(Pid, i64)> =
            todo.iter().map(|t| (t.partition.pid(), t.window_ms)).collect();
        inner.dedup_refresh(&windows).await?;

        let mut appends = Vec::new();
        let mut plans = Vec::new();
        for taken in todo.iter() {
            let plan = self.plan(taken).await?;
            plans.push((appends.len(), plan.segments.len(), plan.places));
            appends.extend(plan.segments);
        }
        let rows =
            if appends.is_empty() { Vec::new() } else { inner.db.push_many(&appends).await? };
        let mut missing = Vec::new();
        let mut again = Vec::new();
        for (taken, (first, n, places)) in todo.drain(..).zip(plans) {
            let mine = &rows[first..first + n];
            let pid = taken.partition.pid();
            if mine.contains(&Appended::Missing) {
                inner.directory.forget_partition(taken.partition.id);
                missing.push(taken.partition.clone());
                again.push(taken);
            } else if mine.contains(&Appended::Stale) {
                inner.dedup.forget(pid);
                again.push(taken);
            } else {
                let mut bases = Vec::new();
                for (append, row) in appends[first..first + n].iter().zip(mine) {
                    let Appended::At { base_offset, created_at } = row else { continue };
                    bases.push((*base_offset, i64::from(append.segment.n)));
                    inner.dedup_appended(append, *base_offset, *created_at);
                }
                if n > 0 {
                    inner.appended(taken.partition.queue, pid);
                }
                answer(taken, places, &bases);
            }
        }
        todo.append(&mut again);
        if missing.is_empty() {
            return Ok(());
        }
        inner.db.partitions_ensure(&missing).await.inspect_err(|_| {
            // The queue itself may be gone: whoever pushes again looks it up again.
            for partition in &missing {
                inner.directory.forget_queue(partition.queue);
            }
        })
    }

    /// Decides which messages are new, and packs them.
    async fn plan(&self, taken: &Taken) -> Result<Plan, Error> {
        let inner = &self.inner;
        let pid = taken.partition.pid();
        let window_ms = taken.window_ms;
        let known = inner.dedup_known(pid, window_ms);
        let mut packer = Packer::default();
        let mut seen: HashMap<TxnHash, Place> = HashMap::new();
        let mut places = Vec::with_capacity(taken.requests.len());
        for request in &taken.requests {
            if window_ms == 0 {
                // Without a window only repeats inside one request collapse (data-plane 27).
                seen.clear();
            }
            let mut mine = Vec::with_capacity(request.messages.len());
            for message in &request.messages {
                let hash = message.transaction_id.as_deref().map(TxnHash::of);
                if let Some(hash) = hash {
                    let first = match seen.get(&hash) {
                        Some(first) => Some(*first),
                        None => inner.find_original(pid, hash, message, window_ms).await?,
                    };
                    if let Some(first) = first {
                        seen.insert(hash, first);
                        mine.push((first, true));
                        continue;
                    }
                }
                let place = packer.push(message, hash);
                if let Some(hash) = hash {
                    seen.insert(hash, place);
                }
                mine.push((place, false));
            }
            places.push(mine);
        }
        Ok(Plan { segments: packer.finish(pid, known, window_ms), places })
    }
}

/// Where a message stands: in the segments of this call, or in the store already.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    New { message_id: Uuid, frame: i64 },
    Old { message_id: Uuid, offset: i64 },
}

impl Place {
    /// Id and offset, given where the segments of the call were stored.
    pub(super) fn resolve(self, bases: &[(i64, i64)]) -> (Uuid, i64) {
        match self {
            Self::Old { message_id, offset } => (message_id, offset),
            Self::New { message_id, mut frame } => {
                for (base, n) in bases {
                    if frame < *n {
                        return (message_id, base + frame);
                    }
                    frame -= n;
                }
                unreachable!("every new frame stands in one of the segments");
            }
        }
    }
}

struct Plan {
    segments: Vec<Append>,
    places: Vec<Vec<(Place, bool)>>,
}

/// Puts messages into segments of bounded size; mints ids in order.
#[derive(Default)]
pub(super) struct Packer {
    done: Vec<crate::log::Segment>,
    open: SegmentBuilder,
    frames: i64,
}

impl Packer {
    /// Adds a message; `hash` is that of its own transaction id, if it has one.
    pub(super) fn push(&mut self, message: &NewMessage, hash: Option<TxnHash>) -> Place {
        let full = self.open.len() >= SEGMENT_FRAMES_MAX
            || self.open.raw_bytes() + message.payload.len() > SEGMENT_RAW_BYTES_MAX;
        if full && !self.open.is_empty() {
            self.done.push(std::mem::take(&mut self.open).finish());
        }
        let message_id = message.message_id.unwrap_or_else(Uuid::now_v7);
        let frame = Frame {
            message_id,
            transaction_id: message.transaction_id.clone(),
            trace_id: message.trace_id,
            producer_sub: message.producer_sub.clone(),
            payload: message.payload.clone(),
        };
        let hash = hash.unwrap_or_else(|| TxnHash::of(&message_id.to_string()));
        self.open.push(&frame, hash);
        let place = Place::New { message_id, frame: self.frames };
        self.frames += 1;
        place
    }

    /// The segments as appends to one partition.
    pub(super) fn finish(mut self, pid: Pid, known: Option<i64>, window_ms: i64) -> Vec<Append> {
        if !self.open.is_empty() {
            self.done.push(self.open.finish());
        }
        // The later segments of one call stand behind the row lock of the first.
        let known = std::iter::once(known).chain(std::iter::repeat(None));
        self.done
            .into_iter()
            .zip(known)
            .map(|(segment, known)| Append { pid, segment, known, window_ms })
            .collect()
    }
}

fn answer(taken: Taken, places: Vec<Vec<(Place, bool)>>, bases: &[(i64, i64)]) {
    for (request, places) in taken.requests.into_iter().zip(places) {
        let stored = places
            .into_iter()
            .map(|(place, duplicate)| {
                let (message_id, offset) = place.resolve(bases);
                Stored { message_id, offset, duplicate }
            })
            .collect();
        // A caller that has gone needs no answer.
        let _ = request.reply.send(Ok(stored));
    }
}

fn fail(todo: Vec<Taken>, cause: &Error) {
    for request in todo.into_iter().flat_map(|taken| taken.requests) {
        let _ = request.reply.send(Err(AppendError::Store(cause.to_string())));
    }
}

impl Inner {
    /// Loads what the indexes lack, for all partitions in one round trip.
    pub(super) async fn dedup_refresh(&self, windows: &[(Pid, i64)]) -> Result<(), Error> {
        let wanted: Vec<(Pid, i64, i64)> = windows
            .iter()
            .filter(|(_, window_ms)| *window_ms > 0)
            .filter_map(|(pid, window_ms)| {
                let index = self.dedup.index(*pid);
                let from = index.lock().expect("no holder panics").wants(*window_ms);
                from.map(|from| (*pid, from, *window_ms))
            })
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        for window in self.db.dedup_load(&wanted).await? {
            let asked = wanted.iter().find(|(pid, _, _)| *pid == window.pid);
            let Some((_, from, window_ms)) = asked else { continue };
            let index = self.dedup.index(window.pid);
            index.lock().expect("no holder panics").load(&window, *from, *window_ms);
        }
        Ok(())
    }

    /// Offset below which the hashes of a partition are known; `None` without a window.
    pub(super) fn dedup_known(&self, pid: Pid, window_ms: i64) -> Option<i64> {
        (window_ms > 0).then(|| self.dedup.index(pid).lock().expect("no holder panics").known())
    }

    /// Takes an append of this broker into the index.
    pub(super) fn dedup_appended(&self, append: &Append, base: i64, at: Timestamp) {
        if append.window_ms > 0 {
            self.dedup.index(append.pid).lock().expect("no holder panics").appended(
                base,
                at,
                &append.segment.hashes,
                append.window_ms,
            );
        }
    }

    /// The stored message of that transaction id, if it stands inside the window.
    pub(super) async fn find_original(
        &self,
        pid: Pid,
        hash: TxnHash,
        message: &NewMessage,
        window_ms: i64,
    ) -> Result<Option<Place>, Error> {
        if window_ms == 0 {
            return Ok(None);
        }
        let index = self.dedup.index(pid);
        let hit = index.lock().expect("no holder panics").find(hash);
        let Some(offset) = hit else { return Ok(None) };
        let original = self.db.frame_at(pid, offset, window_ms).await?.filter(|original| {
            original.inside
                && Some(original.frame.transaction_id()) == message.transaction_id.clone()
        });
        Ok(original.map(|o| Place::Old { message_id: o.frame.message_id, offset }))
    }
}
