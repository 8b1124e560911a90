//! Schedules out of seeds. Every step draws from a generator of its own, so that a schedule stays
//! the same from its beginning up to any step that is changed or left out.

mod acks;
mod cycles;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::model::{GROUPS, Message, Model, Place, QUERY, Settings};
use super::request::Request;

/// What a schedule is played on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// One broker.
    Single,
    /// Two brokers on one store, each request to either.
    Roaming,
    /// A broker of its own, which is stopped and started again.
    Restarting,
}

/// How often a request is sent, and what comes back of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Once,
    /// Again, after it was answered.
    Twice,
    /// Two at the same time.
    Together,
    /// The client goes away after so many microseconds, and sends it again.
    Lost(u64),
}

/// A pop without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pop {
    /// The pinned route, or `None` for the wildcard route.
    pub(super) lane: Option<usize>,
    pub(super) group: usize,
    pub(super) batch: i64,
    pub(super) partitions: usize,
    pub(super) auto_ack: bool,
    /// The worker never sees the answer.
    pub(super) lost: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A request, how it is delivered, and to which of two brokers each time.
    Call(Request, Delivery, [usize; 2]),
    Pop(Pop, usize),
    Expire {
        lane: usize,
        group: usize,
    },
    Restart,
}

/// What a seed decides before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) stage: Stage,
    pub(super) settings: Settings,
    pub(super) steps: u64,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let stage = match rng.random_range(0..100) {
            0..65 => Stage::Single,
            65..90 => Stage::Roaming,
            _ => Stage::Restarting,
        };
        let settings = Settings {
            lanes: rng.random_range(2..=3),
            retry_limit: *[0, 1, 1, 3].choose(&mut rng).expect("some"),
            dead_letter: rng.random_bool(0.75),
        };
        Self { stage, settings, steps: rng.random_range(20..=30) }
    }
}

/// The choices of one step.
struct Draw<'a> {
    rng: StdRng,
    model: &'a Model,
    plan: Plan,
    /// Prefix of the ids of this step.
    name: String,
    at: u64,
}

/// The step that the seed gives at this place to a broker in this state.
pub(super) fn step(seed: u64, at: u64, plan: Plan, model: &Model) -> Step {
    let rng = StdRng::seed_from_u64(seed.rotate_left(32) ^ (at + 1).wrapping_mul(0x9e37_79b9));
    let mut draw = Draw { rng, model, plan, name: format!("s{at}"), at };
    if at == 0 {
        return draw.call(|draw| draw.push(3));
    }
    match draw.rng.random_range(0..100) {
        0..17 => draw.call(|draw| draw.push(1)),
        17..43 => draw.pop(),
        43..68 => draw.call(Draw::cycle),
        68..79 => draw.call(Draw::ack),
        79..88 => draw.call(Draw::transact),
        88..91 => draw.call(Draw::extend),
        91..97 => draw.expire(),
        _ if plan.stage == Stage::Restarting => Step::Restart,
        _ => draw.pop(),
    }
}

/// What settles everything that is left, lane by lane; `None` when all is done.
pub(super) fn closing(model: &Model, at: u64, plan: Plan) -> Option<Step> {
    let left = |lane: &usize| {
        let cursor = model.cursor(*lane, QUERY);
        cursor.map_or(-1, |c| c.committed) + 1 < model.end(*lane) || cursor.is_some_and(|c| c.live)
    };
    let lane = (0..model.lanes.len()).find(left)?;
    let draw = Draw { rng: StdRng::seed_from_u64(at), model, plan, name: format!("s{at}"), at };
    let live = model.cursor(lane, QUERY).filter(|c| c.live);
    Some(match live {
        Some(cursor) if cursor.lost => Step::Expire { lane, group: QUERY },
        Some(_) => {
            let cycle = draw.full(lane, &draw.lease(lane, QUERY).expect("live and known"));
            Step::Call(Request::Cycle(cycle), Delivery::Once, [0, 0])
        }
        None => {
            let pop = Pop {
                lane: Some(lane),
                group: QUERY,
                batch: 100,
                partitions: 1,
                auto_ack: false,
                lost: false,
            };
            Step::Pop(pop, 0)
        }
    })
}

impl Draw<'_> {
    fn call(&mut self, request: impl FnOnce(&mut Self) -> Request) -> Step {
        let request = request(self);
        let delivery = match self.rng.random_range(0..100) {
            0..68 => Delivery::Once,
            68..78 => Delivery::Twice,
            // Answers to transactions have no offsets: they would not say which of two nameless
            // messages stands first.
            78..86 if matches!(request, Request::Transact(_)) && !request.named() => {
                Delivery::Twice
            }
            78..86 => Delivery::Together,
            // Before it was read, at work, or about to be answered.
            _ => {
                let most = *[500, 2_000, 6_000, 25_000].choose(&mut self.rng).expect("some");
                Delivery::Lost(self.rng.random_range(0..most))
            }
        };
        Step::Call(request, delivery, [self.host(), self.host()])
    }

    /// Which of the two brokers.
    fn host(&mut self) -> usize {
        usize::from(self.plan.stage == Stage::Roaming && self.rng.random_bool(0.4))
    }

    fn lane(&mut self) -> usize {
        self.rng.random_range(0..self.plan.settings.lanes)
    }

    fn group(&mut self) -> usize {
        if self.rng.random_bool(0.7) { QUERY } else { self.rng.random_range(0..GROUPS) }
    }

    fn message(&mut self, ordinal: usize, place: &Place) -> Message {
        let known: Vec<&String> = self
            .model
            .logs
            .get(place)
            .into_iter()
            .flatten()
            .filter_map(|m| m.txn.as_ref())
            .collect();
        let again = known.choose(&mut self.rng).filter(|_| self.rng.random_bool(0.12));
        let txn = match again {
            Some(txn) => Some((*txn).clone()),
            None => self.rng.random_bool(0.85).then(|| format!("{}.{ordinal}", self.name)),
        };
        let key = *["a", "b", "c"].choose(&mut self.rng).expect("some");
        Message { txn, data: json!({"key": key, "n": self.rng.random_range(1..1_000)}) }
    }

    fn push(&mut self, least: usize) -> Request {
        let n = self.rng.random_range(least..=5);
        let mut items: Vec<(Place, Message)> = Vec::with_capacity(n);
        for ordinal in 0..n {
            let place = Place::lane(self.lane());
            let message = match items.last().filter(|_| self.rng.random_bool(0.06)) {
                Some((_, message)) => message.clone(),
                None => self.message(ordinal, &place),
            };
            items.push((place, message));
        }
        Request::Push(items)
    }

    fn pop(&mut self) -> Step {
        let pinned = self.rng.random_bool(0.8);
        let mut group = self.group();
        let mut lane = self.lane();
        // Mostly something that is there; sometimes what is leased or empty.
        if self.rng.random_bool(0.8) {
            let pairs =
                (0..self.plan.settings.lanes).flat_map(|l| [(l, QUERY), (l, QUERY), (l, 1)]);
            let pairs: Vec<_> = pairs.filter(|(l, g)| self.model.claimable(*l, *g)).collect();
            (lane, group) = pairs.choose(&mut self.rng).copied().unwrap_or((lane, group));
        }
        let pop = Pop {
            lane: pinned.then_some(lane),
            group,
            batch: self.rng.random_range(1..=6),
            partitions: self.rng.random_range(1..=3),
            auto_ack: group != QUERY && self.rng.random_bool(0.15),
            lost: self.rng.random_bool(0.06),
        };
        Step::Pop(pop, self.host())
    }

    fn expire(&mut self) -> Step {
        let pairs = (0..self.plan.settings.lanes).flat_map(|l| (0..GROUPS).map(move |g| (l, g)));
        let live = |(l, g): &(usize, usize)| self.model.cursor(*l, *g).is_some_and(|c| c.live);
        let leased: Vec<(usize, usize)> = pairs.filter(live).collect();
        match leased.choose(&mut self.rng) {
            Some((lane, group)) => Step::Expire { lane: *lane, group: *group },
            None => self.pop(),
        }
    }

    /// The lease that its worker holds now.
    fn lease(&self, lane: usize, group: usize) -> Option<String> {
        self.model.cursor(lane, group).filter(|c| c.live && !c.lost)?.lease.clone()
    }

    /// One that is no longer live, or belongs to something else, or to nobody.
    fn stale(&mut self, lane: usize, group: usize) -> String {
        let live = self.model.cursor(lane, group).filter(|c| c.live).and_then(|c| c.lease.as_ref());
        let held = self.model.held.iter().map(|held| &held.lease);
        let held: Vec<&String> = held.filter(|lease| Some(*lease) != live).collect();
        match held.choose(&mut self.rng) {
            Some(lease) => (*lease).clone(),
            None => "01994c11-0c22-7d90-9f31-5b7a6c8d9e0f".to_owned(),
        }
    }

    /// A lane that somebody holds for the group, most of the time.
    fn leased_lane(&mut self, group: usize) -> usize {
        let lanes = 0..self.plan.settings.lanes;
        let leased: Vec<usize> = lanes.filter(|l| self.lease(*l, group).is_some()).collect();
        let any = self.lane();
        leased.choose(&mut self.rng).copied().filter(|_| self.rng.random_bool(0.9)).unwrap_or(any)
    }

    fn extend(&mut self) -> Request {
        let group = self.settled_group();
        let lane = self.leased_lane(group);
        let lease = self.lease(lane, group).filter(|_| self.rng.random_bool(0.8));
        let lease = lease.unwrap_or_else(|| self.stale(lane, group));
        Request::Extend { lease, seconds: *[5, 3_600].choose(&mut self.rng).expect("some") }
    }
}
