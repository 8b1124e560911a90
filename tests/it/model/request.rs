//! What is sent, and what must come back.

use super::fold::Work;
use super::model::{Message, Model, Place};

/// What is said of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Completed,
    Failed,
    Retry,
    Dead,
}

/// A message by its transaction id: `None` is one that nobody ever pushed.
pub(super) type Target = Option<i64>;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct AckItem {
    pub(super) lane: usize,
    pub(super) target: Target,
    pub(super) status: Status,
}

/// `POST /ack`, or `/ack/batch` for several items.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ack {
    pub(super) group: usize,
    pub(super) lease: Option<String>,
    pub(super) items: Vec<AckItem>,
}

/// An operation of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operation {
    Push(Place, Message),
    Ack { group: usize, lease: Option<String>, item: AckItem },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Transaction {
    pub(super) operations: Vec<Operation>,
    pub(super) required: Vec<String>,
}

/// How a cycle settles.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Settle {
    /// `ack: null`
    Nothing,
    /// Completed, lease released.
    Full { lease: String, count: i64, last: Target },
    /// Completed, lease kept.
    Partial { lease: String, count: i64, last: Target },
    /// Any other word.
    Nack { lease: String, release: bool, word: &'static str },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cycle {
    pub(super) lane: usize,
    pub(super) settle: Settle,
    pub(super) work: Work,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    Push(Vec<(Place, Message)>),
    Ack(Ack),
    Transact(Transaction),
    Cycle(Cycle),
    Extend { lease: String, seconds: i64 },
}

impl Request {
    /// Whether every message of it has an id that its producer chose.
    pub(super) fn named(&self) -> bool {
        match self {
            Self::Push(items) => items.iter().all(|(_, message)| message.txn.is_some()),
            Self::Transact(t) => t.operations.iter().all(|operation| match operation {
                Operation::Push(_, message) => message.txn.is_some(),
                Operation::Ack { .. } => true,
            }),
            _ => true,
        }
    }

    /// Whether a second execution at any later time does nothing, once one has been answered.
    /// True of what names its messages and rests on a lease.
    pub(super) fn guarded(&self) -> bool {
        let leased = |operation: &Operation| match operation {
            Operation::Push(..) => true,
            Operation::Ack { lease, .. } => lease.is_some(),
        };
        match self {
            Self::Push(_) => self.named(),
            Self::Ack(ack) => ack.lease.is_some(),
            Self::Transact(t) => self.named() && t.operations.iter().all(leased),
            Self::Cycle(cycle) => match &cycle.settle {
                Settle::Nothing => false,
                Settle::Full { .. } | Settle::Nack { .. } => true,
                Settle::Partial { count, last, .. } => *count > 0 && last.is_some(),
            },
            Self::Extend { .. } => false,
        }
    }
}

/// What became of an ack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// A word that the error must contain.
    pub(super) error: Option<&'static str>,
    pub(super) released: bool,
    pub(super) dead: bool,
    pub(super) noop: bool,
}

/// One entry of a transaction's results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Pushed { place: Place, offset: i64, duplicate: bool },
    Acked { lane: usize, target: Target, dead: bool },
}

/// What a committed cycle answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cycled {
    pub(super) ops: usize,
    /// Per sink partition in order of first appearance: whether stored, and the first offset.
    pub(super) pushes: Vec<(Place, bool, i64)>,
    /// Count and whether the lease was released.
    pub(super) ack: Option<(i64, bool)>,
}

/// One entry of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    Pushed {
        place: Place,
        message: Message,
        offset: i64,
        duplicate: bool,
    },
    Acked(AckItem, Acked),
    /// Results, or the reasons of which one must be given.
    Transacted(Result<Vec<Done>, Vec<&'static str>>),
    /// Or a word of the error.
    Cycled(usize, Result<Cycled, &'static str>),
    /// Partitions whose lease was extended.
    Extended {
        lease: String,
        seconds: i64,
        lanes: Vec<(usize, usize)>,
    },
}

impl Model {
    /// Carries a request out: what it answers, entry by entry.
    pub(super) fn apply(&mut self, request: &Request) -> Vec<Expected> {
        match request {
            Request::Push(items) => items.iter().map(|(place, m)| self.push(place, m)).collect(),
            Request::Ack(ack) => self.ack(ack),
            Request::Transact(transaction) => {
                let mut trial = self.clone();
                let outcome = trial.transact(transaction);
                if outcome.is_ok() {
                    *self = trial;
                }
                vec![Expected::Transacted(outcome)]
            }
            Request::Cycle(cycle) => {
                let mut trial = self.clone();
                let outcome = trial.cycle(cycle);
                if outcome.is_ok() {
                    *self = trial;
                }
                vec![Expected::Cycled(cycle.lane, outcome)]
            }
            Request::Extend { lease, seconds } => {
                let (lanes, lease) = (self.leased(lease), lease.clone());
                vec![Expected::Extended { lease, seconds: *seconds, lanes }]
            }
        }
    }

    fn push(&mut self, place: &Place, message: &Message) -> Expected {
        let (offset, duplicate) = self.append(place, message);
        let (place, message) = (place.clone(), message.clone());
        Expected::Pushed { place, message, offset, duplicate }
    }
}
