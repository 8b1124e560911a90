//! Hints between brokers: what happened here that others may wait for.
//!
//! Hints are collected and sent a few milliseconds later from a connection of their own, never
//! inside the transaction that they tell of: a NOTIFY makes commits wait for each other.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};

use super::{Broker, Event};
use crate::db::listen::{Heard, PAYLOAD_BYTES_MAX};
use crate::types::id::{Pid, QueueNo};

/// How long hints are collected.
const COLLECT: Duration = Duration::from_millis(4);

/// Time between a write without an answer and the look at what it may have done.
const DOUBT: Duration = Duration::from_millis(20);

/// One notification.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Hint {
    /// The broker that speaks; it ignores its own words.
    b: u64,
    /// Appended: (queue, partition).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    a: Vec<(i64, i64)>,
    /// Released: (queue, group, partition).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    r: Vec<(i64, String, i64)>,
    /// Queues whose options changed or that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    q: Vec<i64>,
    /// Queries changed: registrations, states, groups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    h: bool,
}

#[derive(Default)]
struct Collected {
    appended: HashSet<(i64, i64)>,
    released: HashSet<(i64, String, i64)>,
    queues: HashSet<i64>,
    queries: bool,
}

/// Hints that are to be sent.
#[derive(Default)]
pub(super) struct Wake {
    collected: Mutex<Collected>,
    some: Notify,
}

impl Wake {
    fn with(&self, f: impl FnOnce(&mut Collected)) {
        f(&mut self.collected.lock().expect("no holder panics"));
        self.some.notify_one();
    }

    pub(super) fn appended(&self, queue: QueueNo, pid: Pid) {
        self.with(|c| {
            c.appended.insert((queue.0, pid.0));
        });
    }

    pub(super) fn released(&self, queue: QueueNo, group: &str, pid: Pid) {
        self.with(|c| {
            c.released.insert((queue.0, group.to_owned(), pid.0));
        });
    }

    pub(super) fn queue(&self, queue: QueueNo) {
        self.with(|c| {
            c.queues.insert(queue.0);
        });
    }

    pub(super) fn queries(&self) {
        self.with(|c| c.queries = true);
    }

    /// Everything collected, cut into notifications of bounded size.
    fn drain(&self, broker: u64) -> Vec<String> {
        let mut c = std::mem::take(&mut *self.collected.lock().expect("no holder panics"));
        let mut out = Vec::new();
        let mut hint = Hint { b: broker, h: c.queries, ..Hint::default() };
        hint.q.extend(c.queues.drain().take(200));
        let mut size = 300 + hint.q.len() * 20;
        let mut flush = |hint: &mut Hint, size: &mut usize| {
            let full = std::mem::replace(hint, Hint { b: broker, ..Hint::default() });
            out.push(serde_json::to_string(&full).expect("numbers and text are JSON"));
            *size = 300;
        };
        for entry in c.appended {
            if size + 48 > PAYLOAD_BYTES_MAX {
                flush(&mut hint, &mut size);
            }
            size += 48;
            hint.a.push(entry);
        }
        for entry in c.released {
            // A character may take six bytes when it is escaped.
            let cost = 56 + entry.1.len() * 6;
            if size + cost > PAYLOAD_BYTES_MAX {
                flush(&mut hint, &mut size);
            }
            if cost + 300 <= PAYLOAD_BYTES_MAX {
                size += cost;
                hint.r.push(entry);
            }
        }
        if hint.h || !(hint.a.is_empty() && hint.r.is_empty() && hint.q.is_empty()) {
            flush(&mut hint, &mut size);
        }
        out
    }
}

impl Broker {
    /// Sends hints until the broker stops.
    pub(super) async fn wake_loop(self) {
        let inner = &self.inner;
        loop {
            tokio::select! {
                () = inner.stop.cancelled() => break,
                () = inner.wake.some.notified() => {}
            }
            tokio::time::sleep(COLLECT).await;
            self.send_hints().await;
        }
        self.send_hints().await;
    }

    async fn send_hints(&self) {
        for payload in self.inner.wake.drain(self.inner.instance) {
            if let Err(cause) = self.inner.db.notify(&payload).await {
                // Others find the work by looking for themselves.
                tracing::debug!(%cause, "hint not sent");
            }
        }
    }

    /// Has whoever waits look at what writes without an answer may have done.
    pub(super) async fn doubt_loop(self) {
        let inner = &self.inner;
        loop {
            tokio::select! {
                () = inner.stop.cancelled() => return,
                () = inner.db.unanswered() => {}
            }
            // One look for all that failed together.
            tokio::time::sleep(DOUBT).await;
            inner.lanes.look_again();
        }
    }

    /// Takes in what other brokers say.
    pub(super) async fn hear_loop(self, mut heard: mpsc::Receiver<Heard>) {
        while let Some(heard) = heard.recv().await {
            match heard {
                Heard::Connected => {
                    self.inner.metrics.listening.set(1);
                    self.inner.lanes.set_hearing(true);
                    self.inner.event(Event::QueriesChanged);
                }
                Heard::Disconnected => {
                    self.inner.metrics.listening.set(0);
                    self.inner.lanes.set_hearing(false);
                }
                Heard::Message(text) => match serde_json::from_str::<Hint>(&text) {
                    Ok(hint) if hint.b == self.inner.instance => {}
                    Ok(hint) => self.take_hint(hint),
                    Err(cause) => tracing::debug!(%cause, "unreadable hint"),
                },
            }
        }
    }

    fn take_hint(&self, hint: Hint) {
        let inner = &self.inner;
        for (queue, pid) in hint.a {
            inner.lanes.appended(QueueNo(queue), Pid(pid));
        }
        for (queue, group, pid) in hint.r {
            inner.lanes.released(QueueNo(queue), &group, Pid(pid));
        }
        for queue in hint.q {
            inner.directory.forget_queue(QueueNo(queue));
            inner.lanes.forget(QueueNo(queue));
        }
        if hint.h {
            inner.directory.forget_queries();
            inner.directory.forget_groups();
            inner.event(Event::QueriesChanged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_cut_to_what_a_notification_holds() {
        let wake = Wake::default();
        for pid in 0..1_000 {
            wake.appended(QueueNo(1), Pid(pid + (1 << 59)));
            wake.released(QueueNo(1), &"\u{1}".repeat(100), Pid(pid));
        }
        let sent = wake.drain(u64::MAX);
        assert!(sent.iter().all(|s| s.len() <= PAYLOAD_BYTES_MAX));
        let parsed: Vec<Hint> =
            sent.iter().map(|s| serde_json::from_str(s).expect("parses")).collect();
        assert_eq!(parsed.iter().map(|h| h.a.len()).sum::<usize>(), 1_000);
        assert_eq!(parsed.iter().map(|h| h.r.len()).sum::<usize>(), 1_000);
        assert!(wake.drain(1).is_empty());
    }
}
