//! Cycles of workers, of those who hold a lease and of others.

use rand::Rng;
use rand::seq::IndexedRandom;
use serde_json::json;

use super::Draw;
use crate::model::fold::Folding;
use crate::model::model::{Message, QUERY};
use crate::model::request::{Cycle, Request, Settle};

impl Draw<'_> {
    pub(super) fn full(&self, lane: usize, lease: &str) -> Cycle {
        let rest = self.rest(lane);
        let mut folding = Folding::new(&self.model.lanes[lane].rows, Some(&self.name));
        for at in rest.clone() {
            folding.message(at, self.message_at(lane, at));
        }
        let (count, last) = (rest.end - rest.start, (rest.end > 0).then_some(rest.end - 1));
        let settle = Settle::Full { lease: lease.to_owned(), count, last };
        Cycle { lane, settle, work: folding.work }
    }

    fn message_at(&self, lane: usize, at: i64) -> &Message {
        &self.model.log(lane)[usize::try_from(at).expect("an offset")]
    }

    /// What the holder of a batch has yet to settle; for others, what they might think.
    fn rest(&self, lane: usize) -> std::ops::Range<i64> {
        let cursor = self.model.cursor(lane, QUERY);
        let from = cursor.map_or(0, |c| c.committed + 1);
        let end = self.model.end(lane);
        let to = cursor.and_then(|c| c.batch_end).map_or(end, |last| last + 1);
        from..to.max(from)
    }

    pub(super) fn cycle(&mut self) -> Request {
        let mut lane = self.leased_lane(QUERY);
        let settles = self.rng.random_bool(0.82);
        if self.model.end(lane) == 0 {
            // A cycle needs a partition.
            let filled = (0..self.plan.settings.lanes).find(|l| self.model.end(*l) > 0);
            lane = filled.unwrap_or(lane);
            if filled.is_none() {
                return self.push(1);
            }
        }
        let held = self.lease(lane, QUERY).filter(|_| self.rng.random_bool(0.9));
        if !settles || (held.is_none() && self.rng.random_bool(0.5)) {
            return Request::Cycle(self.bystander(lane));
        }
        let lease = held.unwrap_or_else(|| self.stale(lane, QUERY));
        Request::Cycle(match self.rng.random_range(0..100) {
            0..45 => {
                let mut full = self.full(lane, &lease);
                // What the worker counts is believed, and moves nothing (streams A7).
                if let Settle::Full { count, .. } = &mut full.settle
                    && self.rng.random_bool(0.1)
                {
                    *count = self.rng.random_range(0..9);
                }
                full
            }
            45..80 => self.partial(lane, &lease),
            _ => {
                let named = self.rng.random_bool(0.7).then_some(self.name.as_str());
                let mut folding = Folding::new(&self.model.lanes[lane].rows, named);
                folding.note(i64::try_from(self.at).expect("small"));
                let work = folding.work;
                let word = *["failed", "retry", "OK", ""].choose(&mut self.rng).expect("some");
                let release = self.rng.random_bool(0.5);
                Cycle { lane, settle: Settle::Nack { lease, release, word }, work }
            }
        })
    }

    fn partial(&mut self, lane: usize, lease: &str) -> Cycle {
        let rest = self.rest(lane);
        let count = self.rng.random_range(0..=rest.end - rest.start + 1);
        let to = (rest.start + count).min(rest.end);
        let named = self.rng.random_bool(0.7).then_some(self.name.as_str());
        let mut folding = Folding::new(&self.model.lanes[lane].rows, named);
        for at in rest.start..to {
            folding.message(at, self.message_at(lane, at));
        }
        let last = (to > rest.start).then_some(to - 1);
        Cycle {
            lane,
            settle: Settle::Partial { lease: lease.to_owned(), count, last },
            work: folding.work,
        }
    }

    /// A cycle that settles nothing.
    fn bystander(&mut self, lane: usize) -> Cycle {
        let choice = self.rng.random_range(0..8);
        // Without names a repetition emits again (streams X10): only remarks may do so here.
        let named = (choice != 5 || self.rng.random_bool(0.5)).then_some(self.name.as_str());
        let mut folding = Folding::new(&self.model.lanes[lane].rows, named);
        match choice {
            0..5 => folding.flush(choice),
            5 => folding.note(i64::try_from(self.at).expect("small")),
            6 => folding.feed(lane, json!({"key": "d", "n": 7})),
            _ => {}
        }
        Cycle { lane, settle: Settle::Nothing, work: folding.work }
    }
}
