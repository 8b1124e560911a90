//! The broker in memory: what it must hold after every step. No I/O, no time, no chance.
//!
//! One source queue with its partitions, one sink queue, one query. Group 0 is the query's own
//! (`streams.<name>`), group 1 reads the source beside it.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::fold::Effect;

/// Groups that read the source.
pub(super) const GROUPS: usize = 2;
/// The group of the query.
pub(super) const QUERY: usize = 0;

/// What a schedule is played under; part of what its seed decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) lanes: usize,
    pub(super) retry_limit: i32,
    pub(super) dead_letter: bool,
}

/// One of the two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Queue {
    Source,
    Sink,
}

/// A partition by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) queue: Queue,
    pub(super) partition: String,
}

impl Place {
    pub(super) fn lane(lane: usize) -> Self {
        Self { queue: Queue::Source, partition: format!("p{lane}") }
    }

    pub(super) fn sink(partition: &str) -> Self {
        Self { queue: Queue::Sink, partition: partition.to_owned() }
    }
}

/// A message as its producer sent it; without `txn` the broker names it after its id.
#[derive(Clone, PartialEq)]
pub(super) struct Message {
    pub(super) txn: Option<String>,
    pub(super) data: Value,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.queue, self.partition)
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.txn.as_deref().unwrap_or("-"), self.data)
    }
}

/// What became of an offset for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Settled by a cycle, which folded it.
    Folded,
    /// Settled by an ack, a transaction or at delivery.
    Acked,
    Dead,
    /// Given up without a record.
    Dropped,
}

/// The cursor of a group on a partition of the source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cursor {
    pub(super) committed: i64,
    pub(super) batch_end: Option<i64>,
    pub(super) lease: Option<String>,
    /// The lease has not lapsed.
    pub(super) live: bool,
    /// The answer with the lease was lost: no worker has it.
    pub(super) lost: bool,
    pub(super) retries: i32,
    pub(super) consumed: i64,
    attempt_at: i64,
    attempt: i64,
    /// Fate of every offset up to `committed`.
    pub(super) fates: Vec<Fate>,
}

impl Cursor {
    fn new() -> Self {
        Self {
            committed: -1,
            batch_end: None,
            lease: None,
            live: false,
            lost: false,
            retries: 0,
            consumed: 0,
            attempt_at: -1,
            attempt: 0,
            fates: Vec::new(),
        }
    }

    /// Whether this lease may settle something now.
    pub(super) fn holds(&self, lease: &str) -> bool {
        self.live && self.lease.as_deref() == Some(lease)
    }

    pub(super) fn release(&mut self) {
        self.lease = None;
        self.batch_end = None;
        self.live = false;
        self.lost = false;
    }

    /// Moves to `to`; everything passed has the fate, but for `except`.
    pub(super) fn pass(&mut self, to: i64, fate: Fate, except: Option<(i64, Fate)>) {
        for offset in self.committed + 1..=to {
            let special = except.filter(|(at, _)| *at == offset);
            self.fates.push(special.map_or(fate, |(_, fate)| fate));
        }
        self.committed = self.committed.max(to);
    }

    /// The attempts are counted anew (streams A8).
    pub(super) fn forget_attempts(&mut self) {
        (self.attempt_at, self.attempt) = (-1, 0);
    }
}

/// A record of a message that a group gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) group: usize,
    pub(super) offset: i64,
    pub(super) retries: i32,
}

/// A partition of the source, with what is kept beside its log.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Lane {
    pub(super) cursors: [Option<Cursor>; GROUPS],
    /// State rows of the query.
    pub(super) rows: BTreeMap<String, Value>,
    /// What the rows were made from.
    pub(super) history: Vec<Effect>,
    pub(super) dead: Vec<Dead>,
    /// The broker may not know yet that it is claimable: a wildcard pop may pass it by.
    pub(super) hidden: [bool; GROUPS],
}

/// Messages `from..=to` of a lane, as one pop delivers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) lane: usize,
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) attempt: i64,
}

impl Run {
    pub(super) fn len(&self) -> i64 {
        self.to - self.from + 1
    }
}

/// A lease that some worker was given, however long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) lane: usize,
    pub(super) group: usize,
    pub(super) lease: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) settings: Settings,
    pub(super) logs: BTreeMap<Place, Vec<Message>>,
    pub(super) lanes: Vec<Lane>,
    pub(super) held: Vec<Held>,
}

impl Model {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            logs: BTreeMap::new(),
            lanes: vec![Lane::default(); settings.lanes],
            held: Vec::new(),
        }
    }

    pub(super) fn log(&self, lane: usize) -> &[Message] {
        self.logs.get(&Place::lane(lane)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn end(&self, lane: usize) -> i64 {
        i64::try_from(self.log(lane).len()).expect("short")
    }

    pub(super) fn cursor(&self, lane: usize, group: usize) -> Option<&Cursor> {
        self.lanes[lane].cursors[group].as_ref()
    }

    /// Where an id stands.
    pub(super) fn find(&self, place: &Place, txn: &str) -> Option<i64> {
        let at = self.logs.get(place)?.iter().position(|m| m.txn.as_deref() == Some(txn))?;
        i64::try_from(at).ok()
    }

    /// Stores a message unless its id is there: its offset, and whether it is a duplicate.
    pub(super) fn append(&mut self, place: &Place, message: &Message) -> (i64, bool) {
        if let Some(at) = message.txn.as_deref().and_then(|txn| self.find(place, txn)) {
            return (at, true);
        }
        let log = self.logs.entry(place.clone()).or_default();
        log.push(message.clone());
        let at = i64::try_from(log.len()).expect("short") - 1;
        let lane = (0..self.lanes.len()).find(|lane| Place::lane(*lane) == *place);
        if let Some(lane) = lane {
            self.lanes[lane].hidden = [false; GROUPS];
        }
        (at, false)
    }

    /// Whether a pop that looks at the lane gets something.
    pub(super) fn claimable(&self, lane: usize, group: usize) -> bool {
        let end = self.end(lane);
        self.cursor(lane, group).map_or(end > 0, |c| !c.live && c.committed + 1 < end)
    }

    /// What a pop delivers of a lane, and the lease under it; `None` settles at delivery.
    pub(super) fn claim(
        &mut self,
        (lane, group): (usize, usize),
        most: i64,
        lease: Option<&str>,
    ) -> Option<Run> {
        if !self.claimable(lane, group) || most <= 0 {
            return None;
        }
        let end = self.end(lane);
        self.lanes[lane].hidden[group] = false;
        let cursor = self.lanes[lane].cursors[group].get_or_insert_with(Cursor::new);
        let from = cursor.committed + 1;
        let to = (from + most).min(end) - 1;
        let attempt = if cursor.attempt_at == from { cursor.attempt + 1 } else { 1 };
        let run = Run { lane, from, to, attempt: if lease.is_some() { attempt } else { 1 } };
        cursor.release();
        if let Some(lease) = lease {
            cursor.batch_end = Some(to);
            cursor.lease = Some(lease.to_owned());
            cursor.live = true;
            (cursor.attempt_at, cursor.attempt) = (from, attempt);
            self.held.push(Held { lane, group, lease: lease.to_owned() });
        } else {
            cursor.pass(to, Fate::Acked, None);
            cursor.consumed += run.len();
            cursor.retries = 0;
            cursor.forget_attempts();
        }
        Some(run)
    }

    /// Time passes over a lease.
    pub(super) fn expire(&mut self, lane: usize, group: usize) {
        if let Some(cursor) = self.lanes[lane].cursors[group].as_mut().filter(|c| c.live) {
            cursor.live = false;
            self.lanes[lane].hidden[group] = true;
        }
    }

    /// The answer of a pop got lost: no worker knows its lease.
    pub(super) fn lose(&mut self, lease: &str) {
        self.held.retain(|held| held.lease != lease);
        for cursor in self.lanes.iter_mut().flat_map(|lane| lane.cursors.iter_mut().flatten()) {
            cursor.lost |= cursor.lease.as_deref() == Some(lease);
        }
    }

    /// Live partitions of a lease.
    pub(super) fn leased(&self, lease: &str) -> Vec<(usize, usize)> {
        let pairs = (0..self.lanes.len()).flat_map(|lane| (0..GROUPS).map(move |g| (lane, g)));
        pairs.filter(|(l, g)| self.cursor(*l, *g).is_some_and(|c| c.holds(lease))).collect()
    }

    /// What the broker is told of itself may lag behind: after lost and concurrent requests.
    pub(super) fn blur(&mut self) {
        for lane in &mut self.lanes {
            lane.hidden = [true; GROUPS];
        }
    }

    /// A fresh broker looks into the store.
    pub(super) fn restarted(&mut self) {
        for lane in &mut self.lanes {
            lane.hidden = [false; GROUPS];
        }
    }
}
