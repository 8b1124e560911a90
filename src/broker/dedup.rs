//! Which transaction ids a partition has seen inside its window.
//!
//! The index only proves that an id is new; a hit is verified in the store. It is complete below
//! `known`: when others appended beyond it, the allocator compares hashes itself and refuses a
//! possible duplicate as stale, and the missing part is loaded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};

use crate::db::append::Window;
use crate::types::id::{Pid, TxnHash};
use crate::types::limits::DEDUP_HASHES_MAX;

struct Run {
    created_at: Timestamp,
    first_offset: i64,
    keys: Vec<u64>,
}

/// The index of one partition.
#[derive(Default)]
pub(super) struct Index {
    loaded: bool,
    gap: bool,
    known: i64,
    /// Length of the window that the index is complete for, ms.
    window_ms: i64,
    runs: VecDeque<Run>,
    offsets: HashMap<u64, i64>,
}

impl Index {
    /// Offset from which hashes must be read before the index can be trusted for a window of that
    /// length; `None`: it can. A longer window than before asks for everything again.
    pub(super) fn wants(&mut self, window_ms: i64) -> Option<i64> {
        if window_ms > self.window_ms {
            *self = Self { window_ms, ..Self::default() };
        }
        if !self.loaded {
            Some(0)
        } else if self.gap {
            Some(self.known)
        } else {
            None
        }
    }

    /// Offset below which every hash of the window is here.
    pub(super) fn known(&self) -> i64 {
        self.known
    }

    /// Where an id may have been stored.
    pub(super) fn find(&self, hash: TxnHash) -> Option<i64> {
        self.offsets.get(&hash.short()).copied()
    }

    fn add(&mut self, first_offset: i64, created_at: Timestamp, keys: Vec<u64>) {
        for (offset, key) in (first_offset..).zip(&keys) {
            self.offsets.insert(*key, offset);
        }
        self.runs.push_back(Run { created_at, first_offset, keys });
    }

    /// Takes in what was read from the store, from an offset on and for a window of a length.
    ///
    /// Others may have started the index anew since it was asked for: what does not reach back far
    /// enough by now would leave a hole, and is not taken.
    pub(super) fn load(&mut self, window: &Window, from: i64, window_ms: i64) {
        if from > self.known || window_ms < self.window_ms {
            return;
        }
        for segment in &window.segments {
            if segment.first_offset >= self.known {
                let keys = segment.hashes.as_chunks::<16>().0.iter().map(|h| TxnHash(*h).short());
                self.add(segment.first_offset, segment.created_at, keys.collect());
            }
        }
        self.loaded = true;
        self.gap = false;
        self.known = self.known.max(window.next_offset);
    }

    /// Takes in an append of this broker.
    pub(super) fn appended(&mut self, base: i64, at: Timestamp, hashes: &[u8], window_ms: i64) {
        let keys: Vec<u64> =
            hashes.as_chunks::<16>().0.iter().map(|h| TxnHash(*h).short()).collect();
        let next = base + i64::try_from(keys.len()).expect("a segment is bounded");
        if base <= self.known {
            self.known = self.known.max(next);
        } else {
            self.gap = true;
        }
        self.add(base, at, keys);
        self.expire(at, window_ms);
    }

    fn expire(&mut self, now: Timestamp, window_ms: i64) {
        self.window_ms = self.window_ms.min(window_ms);
        let Ok(limit) = now.checked_sub(SignedDuration::from_millis(window_ms)) else { return };
        while self.runs.front().is_some_and(|run| run.created_at < limit) {
            let run = self.runs.pop_front().expect("there is a front");
            for (offset, key) in (run.first_offset..).zip(&run.keys) {
                if self.offsets.get(key) == Some(&offset) {
                    self.offsets.remove(key);
                }
            }
        }
    }

    fn len(&self) -> usize {
        self.offsets.len()
    }
}

/// The indexes of the partitions that were appended to lately.
#[derive(Default)]
pub(super) struct Dedup {
    inner: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    indexes: HashMap<Pid, (Arc<Mutex<Index>>, u64)>,
    clock: u64,
}

impl Dedup {
    /// The index of a partition, empty on first use.
    pub(super) fn index(&self, pid: Pid) -> Arc<Mutex<Index>> {
        let mut table = self.inner.lock().expect("no holder panics");
        table.clock += 1;
        let clock = table.clock;
        let entry = table.indexes.entry(pid).or_default();
        entry.1 = clock;
        let index = Arc::clone(&entry.0);
        // Looking at every index is dear, so the bound is checked now and then.
        if clock.is_multiple_of(1024) {
            table.trim(clock);
        }
        index
    }

    /// Forgets a partition, so that the next append reads its window again.
    pub(super) fn forget(&self, pid: Pid) {
        self.inner.lock().expect("no holder panics").indexes.remove(&pid);
    }
}

impl Table {
    /// Drops the least recently used indexes until the hashes fit.
    fn trim(&mut self, clock: u64) {
        let mut sizes: Vec<(u64, Pid, usize)> = self
            .indexes
            .iter()
            .map(|(pid, (index, used))| (*used, *pid, index.lock().map_or(0, |i| i.len().max(8))))
            .collect();
        let mut total: usize = sizes.iter().map(|s| s.2).sum();
        sizes.sort_unstable();
        for (used, pid, size) in sizes {
            if total <= DEDUP_HASHES_MAX || used == clock {
                return;
            }
            self.indexes.remove(&pid);
            total -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).expect("in range")
    }

    fn hashes(ids: &[&str]) -> Vec<u8> {
        ids.iter().flat_map(|id| TxnHash::of(id).0).collect()
    }

    #[test]
    fn an_append_beyond_the_known_offset_leaves_a_gap_to_load() {
        let mut index = Index::default();
        assert_eq!(index.wants(60_000), Some(0));
        index.load(&Window { pid: Pid(1), next_offset: 3, segments: vec![] }, 0, 60_000);
        assert_eq!((index.wants(60_000), index.known()), (None, 3));
        index.appended(3, at(1), &hashes(&["a", "b"]), 60_000);
        assert_eq!((index.wants(60_000), index.known()), (None, 5));
        index.appended(9, at(2), &hashes(&["c"]), 60_000);
        assert_eq!((index.wants(60_000), index.known()), (Some(5), 5));
        assert_eq!(index.find(TxnHash::of("b")), Some(4));
        assert_eq!(index.find(TxnHash::of("c")), Some(9));
    }

    #[test]
    fn hashes_leave_with_the_window() {
        let mut index = Index::default();
        assert_eq!(index.wants(10_000), Some(0));
        index.load(&Window { pid: Pid(1), next_offset: 0, segments: vec![] }, 0, 10_000);
        index.appended(0, at(0), &hashes(&["a"]), 10_000);
        index.appended(1, at(20), &hashes(&["b"]), 10_000);
        assert_eq!(index.find(TxnHash::of("a")), None);
        assert_eq!(index.find(TxnHash::of("b")), Some(1));
        assert_eq!(index.wants(5_000), None);
        assert_eq!(index.wants(30_000), Some(0), "what left the shorter window is inside now");
        let window = Window { pid: Pid(1), next_offset: 2, segments: vec![] };
        for (from, window_ms) in [(0, 10_000), (1, 30_000)] {
            index.load(&window, from, window_ms);
            assert_eq!(index.wants(30_000), Some(0), "an answer to an older question");
        }
        index.load(&window, 0, 30_000);
        assert_eq!((index.wants(30_000), index.known()), (None, 2));
    }
}
