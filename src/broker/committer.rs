//! Many cycles, one commit.
//!
//! Like the appender: a worker takes what waits, at most one cycle a shard, and commits it in one
//! call. When the call is refused, each cycle is tried on its own, so that one bad cycle costs its
//! neighbours a repetition and nothing else.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use tokio::sync::{Notify, oneshot};

use super::Broker;
use crate::db::Error;
use crate::db::cycle::{CycleRow, PackedCycle};
use crate::types::id::{Pid, QueryNo};
use crate::types::limits::CYCLES_PER_COMMIT_MAX;

/// Bytes of segments and values that one commit carries, unless a single cycle is larger.
const COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;

struct Waiting {
    cycle: PackedCycle,
    reply: oneshot::Sender<Result<CycleRow, Error>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    busy: HashSet<(Pid, QueryNo)>,
    stopping: bool,
}

/// The cycles that wait for a commit.
#[derive(Default)]
pub(super) struct Committer {
    queue: Mutex<Queue>,
    work: Notify,
}

fn bytes_of(cycle: &PackedCycle) -> usize {
    let state: usize = cycle.upserts.iter().map(|u| u.key.len() + u.value.len()).sum();
    let sinks: usize = cycle.appends.iter().map(|a| a.segment.payload.len()).sum();
    state + sinks
}

impl Committer {
    /// Hands a cycle in; the answer comes when its fate is known. `None` once closed.
    pub(super) fn submit(
        &self,
        cycle: PackedCycle,
    ) -> Option<oneshot::Receiver<Result<CycleRow, Error>>> {
        let (reply, answer) = oneshot::channel();
        let mut queue = self.queue.lock().expect("no holder panics");
        if queue.stopping {
            return None;
        }
        queue.waiting.push_back(Waiting { cycle, reply });
        drop(queue);
        self.work.notify_one();
        Some(answer)
    }

    fn take(&self) -> Vec<Waiting> {
        let mut queue = self.queue.lock().expect("no holder panics");
        let mut taken: Vec<Waiting> = Vec::new();
        let mut later = VecDeque::new();
        let mut bytes = 0;
        while taken.len() < CYCLES_PER_COMMIT_MAX {
            let Some(next) = queue.waiting.pop_front() else { break };
            let size = bytes_of(&next.cycle);
            if bytes + size > COMMIT_BYTES_MAX && !taken.is_empty() {
                later.push_back(next);
                break;
            }
            if queue.busy.insert(next.cycle.key()) {
                bytes += size;
                taken.push(next);
            } else {
                later.push_back(next);
            }
        }
        // What could not be taken keeps its place before what came later.
        while let Some(back) = later.pop_back() {
            queue.waiting.push_front(back);
        }
        let free = queue.waiting.iter().any(|w| !queue.busy.contains(&w.cycle.key()));
        if free {
            self.work.notify_one();
        }
        taken
    }

    fn done(&self, keys: &[(Pid, QueryNo)]) {
        let mut queue = self.queue.lock().expect("no holder panics");
        for key in keys {
            queue.busy.remove(key);
        }
        if !queue.waiting.is_empty() {
            self.work.notify_one();
        }
    }

    /// Refuses new cycles; what waits is still done.
    pub(super) fn close(&self) {
        self.queue.lock().expect("no holder panics").stopping = true;
        self.work.notify_waiters();
        self.work.notify_one();
    }

    fn drained(&self) -> bool {
        let queue = self.queue.lock().expect("no holder panics");
        queue.stopping && queue.waiting.is_empty()
    }
}

impl Broker {
    /// One worker; runs until the committer is closed and empty.
    pub(super) async fn commit_loop(self) {
        let committer = &self.inner.committer;
        loop {
            let taken = committer.take();
            if taken.is_empty() {
                if committer.drained() {
                    committer.work.notify_one();
                    return;
                }
                committer.work.notified().await;
                continue;
            }
            let keys: Vec<_> = taken.iter().map(|w| w.cycle.key()).collect();
            self.commit(taken).await;
            committer.done(&keys);
        }
    }

    async fn commit(&self, mut taken: Vec<Waiting>) {
        let inner = &self.inner;
        inner.metrics.batches.with_label_values(&["cycle"]).inc();
        inner.metrics.batch_items.with_label_values(&["cycle"]).inc_by(taken.len() as u64);
        taken.sort_by_key(|w| w.cycle.key());
        let (cycles, replies): (Vec<_>, Vec<_>) =
            taken.into_iter().map(|w| (w.cycle, w.reply)).unzip();
        match inner.db.cycles(&cycles).await {
            Ok(rows) => {
                for (row, reply) in rows.into_iter().zip(replies) {
                    // A caller that has gone needs no answer.
                    let _ = reply.send(Ok(row));
                }
            }
            Err(cause) if cycles.len() == 1 => {
                if let Some(reply) = replies.into_iter().next() {
                    let _ = reply.send(Err(cause));
                }
            }
            // The outcome of a broken connection is unknown for each of them: a repetition could
            // commit twice what has no lease to guard it, so every caller is told.
            Err(cause @ (Error::Unavailable(_) | Error::Timeout(_))) => {
                let text = cause.to_string();
                for reply in replies {
                    let _ = reply.send(Err(Error::Unavailable(text.clone().into())));
                }
            }
            Err(_refused) => {
                for (cycle, reply) in cycles.into_iter().zip(replies) {
                    let alone = std::slice::from_ref(&cycle);
                    let outcome = inner.db.cycles(alone).await;
                    let _ = reply.send(outcome.map(|mut rows| rows.remove(0)));
                }
            }
        }
    }
}
