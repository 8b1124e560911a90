//! Acks and transactions.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::Draw;
use crate::model::model::{GROUPS, Place};
use crate::model::request::{Ack, AckItem, Operation, Request, Status, Target, Transaction};

impl Draw<'_> {
    fn status(&mut self) -> Status {
        match self.rng.random_range(0..100) {
            0..60 => Status::Completed,
            60..80 => Status::Failed,
            80..90 => Status::Retry,
            _ => Status::Dead,
        }
    }

    fn target(&mut self, lane: usize, group: usize) -> Target {
        let cursor = self.model.cursor(lane, group);
        let (low, end) = (cursor.map_or(-1, |c| c.committed), self.model.end(lane));
        let high = cursor.and_then(|c| c.batch_end).unwrap_or(end - 1);
        let at = match self.rng.random_range(0..100) {
            0..80 if high > low => self.rng.random_range(low + 1..=high),
            80..97 if end > 0 => self.rng.random_range(0..end),
            0..80 => high,
            _ => return None,
        };
        Some(at).filter(|at| *at >= 0)
    }

    /// A lane that exists, and what is said of some of its messages.
    fn ack_items(&mut self, group: usize, most: usize) -> Option<(usize, Vec<AckItem>)> {
        let lane = self.leased_lane(group);
        if self.model.end(lane) == 0 {
            return None;
        }
        let n = if self.rng.random_bool(0.6) { 1 } else { self.rng.random_range(1..=most) };
        let item = |draw: &mut Self| {
            let target = draw.target(lane, group);
            AckItem { lane, target, status: draw.status() }
        };
        let items = (0..n).map(|_| item(self)).collect();
        Some((lane, items))
    }

    /// The lease that an ack names: the right one, none, or a wrong one.
    fn named_lease(&mut self, lane: usize, group: usize) -> Option<String> {
        match self.rng.random_range(0..100) {
            0..72 => self.lease(lane, group),
            72..84 => None,
            _ => Some(self.stale(lane, group)),
        }
    }

    /// A group that has claimed something, most of the time.
    pub(super) fn settled_group(&mut self) -> usize {
        let known = |group: &usize| {
            (0..self.plan.settings.lanes).any(|lane| self.lease(lane, *group).is_some())
        };
        let known: Vec<usize> = (0..GROUPS).filter(known).collect();
        let any = self.rng.random_range(0..GROUPS);
        known.choose(&mut self.rng).copied().filter(|_| self.rng.random_bool(0.9)).unwrap_or(any)
    }

    pub(super) fn ack(&mut self) -> Request {
        let group = self.settled_group();
        let Some((lane, mut items)) = self.ack_items(group, 4) else { return self.push(1) };
        // Another lane in the same call: a group of its own.
        if let Some((_, more)) = self.ack_items(group, 2).filter(|_| self.rng.random_bool(0.2)) {
            items.extend(more);
        }
        Request::Ack(Ack { group, lease: self.named_lease(lane, group), items })
    }

    pub(super) fn transact(&mut self) -> Request {
        let mut operations = Vec::new();
        let mut required = Vec::new();
        for _ in 0..self.rng.random_range(0..=2) {
            let group = self.settled_group();
            let Some((lane, items)) = self.ack_items(group, 2) else { continue };
            let lease = self.named_lease(lane, group);
            let on_operation = self.rng.random_bool(0.7);
            if !on_operation || self.rng.random_bool(0.5) {
                required.extend(lease.clone());
            }
            let lease = lease.filter(|_| on_operation);
            operations.extend(items.into_iter().map(|item| {
                let lease = lease.clone();
                Operation::Ack { group, lease, item }
            }));
        }
        let pushes = self.rng.random_range(usize::from(operations.is_empty())..=2);
        for ordinal in 0..pushes {
            let place = match self.rng.random_bool(0.5) {
                true => Place::lane(self.lane()),
                false => Place::sink(["a", "x"].choose(&mut self.rng).expect("some")),
            };
            let message = self.message(ordinal, &place);
            let at = self.rng.random_range(0..=operations.len());
            operations.insert(at, Operation::Push(place, message));
        }
        Request::Transact(Transaction { operations, required })
    }
}
