//! Which partitions a group can claim, and who waits for one.
//!
//! Per (queue, group) a list of partitions that are worth a claim: fed by appends, releases and
//! hints of other brokers, by lease ends, and by a sweep of the store that is shared by all that
//! wait. Idle partitions cost nothing here. The list only proposes: a claim decides.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::db::{Db, Error};
use crate::types::id::{GroupNo, Pid, QueueNo};

/// Rows of one sweep.
const SWEEP_ROWS: i64 = 1_000;
/// Time between sweeps while hints of other brokers are heard.
const SWEEP_HEALTHY: Duration = Duration::from_secs(5);
/// Time between sweeps while they are not.
const SWEEP_DEAF: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Inner {
    ready: VecDeque<Pid>,
    in_ready: HashSet<Pid>,
    later: BTreeSet<(Instant, Pid)>,
    later_of: HashMap<Pid, Instant>,
    swept_at: Option<Instant>,
    more: bool,
    pinned: HashMap<Pid, Arc<Notify>>,
}

impl Inner {
    fn push(&mut self, pid: Pid) -> bool {
        let new = self.in_ready.insert(pid);
        if new {
            self.ready.push_back(pid);
        }
        new
    }

    /// One entry a partition: the newest claim decides when its lease ends.
    fn set_later(&mut self, pid: Pid, at: Instant) {
        if let Some(old) = self.later_of.insert(pid, at) {
            self.later.remove(&(old, pid));
        }
        self.later.insert((at, pid));
    }

    fn promote(&mut self, now: Instant) {
        while let Some((at, pid)) = self.later.first().copied() {
            if at > now {
                return;
            }
            self.later.pop_first();
            self.later_of.remove(&pid);
            self.push(pid);
        }
    }
}

/// The claimable partitions of one (queue, group).
pub struct Lanes {
    /// Queue.
    pub queue: QueueNo,
    /// Group in the store.
    pub group: GroupNo,
    /// Name of the group.
    name: String,
    inner: Mutex<Inner>,
    wake: Notify,
}

impl Lanes {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().expect("no holder panics"))
    }

    /// Name of the group.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Proposes a partition and wakes one who waits.
    pub(super) fn offer(&self, pid: Pid) {
        let pinned = self.with(|inner| {
            inner.push(pid);
            inner.pinned.get(&pid).cloned()
        });
        self.wake.notify_one();
        if let Some(pinned) = pinned {
            pinned.notify_waiters();
        }
    }

    /// Proposes a partition after a while: when its lease ends, or its messages become visible.
    pub(super) fn offer_in(&self, pid: Pid, wait: Duration) {
        self.with(|inner| inner.set_later(pid, Instant::now() + wait));
        // Whoever sleeps must learn of an earlier time.
        self.wake.notify_one();
    }

    /// Takes up to `most` proposed partitions.
    pub(super) fn take(&self, most: usize) -> Vec<Pid> {
        self.with(|inner| {
            inner.promote(Instant::now());
            let n = most.min(inner.ready.len());
            let taken: Vec<Pid> = inner.ready.drain(..n).collect();
            for pid in &taken {
                inner.in_ready.remove(pid);
            }
            taken
        })
    }

    /// Whether a sweep would find something that is not proposed yet, as far as is known.
    fn sweep_due(&self, interval: Duration) -> bool {
        self.with(|inner| {
            let due = inner.swept_at.is_none_or(|at| at.elapsed() >= interval)
                || (inner.more && inner.ready.is_empty());
            if due {
                inner.swept_at = Some(Instant::now());
            }
            due
        })
    }

    /// When something is worth doing by itself: a lease end or the next sweep.
    pub(super) fn next_look(&self, interval: Duration) -> Instant {
        self.with(|inner| {
            let sweep = inner.swept_at.map_or_else(Instant::now, |at| at + interval);
            inner.later.first().map_or(sweep, |(at, _)| sweep.min(*at))
        })
    }

    /// The same for one partition alone.
    pub(super) fn next_look_at(&self, pid: Pid, interval: Duration) -> Instant {
        let now = Instant::now();
        let sweep = now + interval;
        // A time that has passed is of a lease that ended otherwise: nothing follows from it.
        let at = self.with(|inner| inner.later_of.get(&pid).copied()).filter(|at| *at > now);
        at.map_or(sweep, |at| at.min(sweep))
    }

    /// Resolves when a partition is proposed. Create and enable it before looking.
    pub fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.wake.notified()
    }

    /// Wakes whoever waits, so that they look the group up again.
    pub(super) fn rouse(&self) {
        // One who is about to wait is woken as well.
        self.wake.notify_one();
        self.wake.notify_waiters();
        self.with(|inner| inner.pinned.values().for_each(|pinned| pinned.notify_waiters()));
    }

    /// Passes a wake-up on: the one who was woken leaves proposed partitions behind.
    pub(super) fn pass_on(&self) {
        if self.with(|inner| !inner.ready.is_empty()) {
            self.wake.notify_one();
        }
    }

    /// Waits for one partition, until the pin is dropped.
    pub(super) fn pin(self: &Arc<Self>, pid: Pid) -> Pin {
        let notify = self.with(|inner| Arc::clone(inner.pinned.entry(pid).or_default()));
        Pin { lanes: Arc::clone(self), pid, notify: Some(notify) }
    }
}

/// The wake-up of one partition, for pinned pops.
pub(super) struct Pin {
    lanes: Arc<Lanes>,
    pid: Pid,
    notify: Option<Arc<Notify>>,
}

impl Pin {
    /// Resolves when the partition is proposed.
    pub(super) fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.as_ref().expect("taken by drop only").notified()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        drop(self.notify.take());
        self.lanes.with(|inner| {
            if inner.pinned.get(&self.pid).is_some_and(|p| Arc::strong_count(p) == 1) {
                inner.pinned.remove(&self.pid);
            }
        });
    }
}

/// All lanes of the broker.
#[derive(Default)]
pub(super) struct LaneTable {
    table: Mutex<HashMap<QueueNo, HashMap<String, Arc<Lanes>>>>,
    any: Notify,
    hearing: AtomicBool,
}

impl LaneTable {
    fn with<T>(
        &self,
        f: impl FnOnce(&mut HashMap<QueueNo, HashMap<String, Arc<Lanes>>>) -> T,
    ) -> T {
        f(&mut self.table.lock().expect("no holder panics"))
    }

    /// The lanes of a group, made on first use.
    pub(super) fn get(&self, queue: QueueNo, name: &str, group: GroupNo) -> Arc<Lanes> {
        self.with(|table| {
            let groups = table.entry(queue).or_default();
            if let Some(lanes) = groups.get(name)
                && lanes.group == group
            {
                return Arc::clone(lanes);
            }
            let lanes = Arc::new(Lanes {
                queue,
                group,
                name: name.to_owned(),
                inner: Mutex::default(),
                wake: Notify::new(),
            });
            groups.insert(name.to_owned(), Arc::clone(&lanes));
            lanes
        })
    }

    /// A partition has new messages: every group may want it.
    pub(super) fn appended(&self, queue: QueueNo, pid: Pid) {
        let lanes: Vec<_> = self
            .with(|table| table.get(&queue).map(|g| g.values().cloned().collect()))
            .unwrap_or_default();
        for lanes in lanes {
            lanes.offer(pid);
        }
        self.any.notify_waiters();
    }

    /// A partition was released by a group.
    pub(super) fn released(&self, queue: QueueNo, group: &str, pid: Pid) {
        let lanes = self.with(|table| table.get(&queue).and_then(|g| g.get(group)).cloned());
        if let Some(lanes) = lanes {
            lanes.offer(pid);
        }
        self.any.notify_waiters();
    }

    /// A queue is gone.
    pub(super) fn forget(&self, queue: QueueNo) {
        let gone = self.with(|table| table.remove(&queue));
        for lanes in gone.into_iter().flat_map(HashMap::into_values) {
            lanes.wake.notify_waiters();
            lanes.with(|inner| inner.pinned.values().for_each(|pinned| pinned.notify_waiters()));
        }
        self.any.notify_waiters();
    }

    /// Whether hints of other brokers are heard. After a gap everything is looked at again.
    pub(super) fn set_hearing(&self, hearing: bool) {
        self.hearing.store(hearing, Ordering::Relaxed);
        self.look_again();
    }

    /// Has everything looked at again: something may have happened that nobody heard of.
    pub(super) fn look_again(&self) {
        let all: Vec<Arc<Lanes>> =
            self.with(|table| table.values().flat_map(HashMap::values).cloned().collect());
        for lanes in all {
            lanes.with(|inner| {
                inner.swept_at = None;
                inner.pinned.values().for_each(|pinned| pinned.notify_waiters());
            });
            lanes.wake.notify_one();
        }
        self.any.notify_waiters();
    }

    /// Time between sweeps.
    pub(super) fn interval(&self) -> Duration {
        if self.hearing.load(Ordering::Relaxed) { SWEEP_HEALTHY } else { SWEEP_DEAF }
    }

    /// Resolves when anything happens on any queue, for pops that look at several.
    pub(super) fn any(&self) -> tokio::sync::futures::Notified<'_> {
        self.any.notified()
    }

    /// Asks the store for claimable partitions, if nobody did so lately.
    pub(super) async fn sweep(&self, db: &Db, lanes: &Lanes) -> Result<(), Error> {
        if !lanes.sweep_due(self.interval()) {
            return Ok(());
        }
        let found = db.lanes(lanes.queue, lanes.group, SWEEP_ROWS).await.inspect_err(|_| {
            lanes.with(|inner| inner.swept_at = None);
        })?;
        let now = Instant::now();
        lanes.with(|inner| {
            inner.more = i64::try_from(found.len()).is_ok_and(|n| n >= SWEEP_ROWS);
            for (pid, wait_ms) in found {
                match wait_ms.and_then(|ms| u64::try_from(ms).ok()) {
                    Some(ms) if ms > 0 => {
                        inner.set_later(pid, now + Duration::from_millis(ms));
                    }
                    _ => {
                        inner.push(pid);
                    }
                }
            }
        });
        Ok(())
    }
}
