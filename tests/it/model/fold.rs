//! The query that the schedules run: count and sum by key, emitted and closed at every third
//! message of a key. Pure: what a worker sends, and what its rows must be.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::model::{Message, Place};

/// Messages of a key after which its row is emitted and deleted.
const CLOSE_AT: i64 = 3;
/// A row that belongs to no key.
const NOTE: &str = "__note__";

/// What a cycle did to the state, apart from what its settlement did to the cursor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// The message at this offset was folded.
    Folded(i64),
    /// An open row was emitted and deleted, as an idle flush does.
    Flushed(String),
    /// A remark was written: what a cycle without settlement may do.
    Noted(i64),
}

/// A state op as the wire has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Upsert(String, Value),
    Delete(String),
}

/// A worker's answer to a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) ops: Vec<Op>,
    pub(super) emits: Vec<(Place, Message)>,
    pub(super) effects: Vec<Effect>,
}

type Rows = BTreeMap<String, Value>;

pub(super) fn apply(rows: &mut Rows, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Upsert(key, value) => {
                rows.insert(key.clone(), value.clone());
            }
            Op::Delete(key) => {
                rows.remove(key);
            }
        }
    }
}

/// Count and sum of a row or of an emitted one.
pub(super) fn totals(row: &Value) -> (i64, i64) {
    (row["count"].as_i64().unwrap_or(0), row["sum"].as_i64().unwrap_or(0))
}

/// Key and amount of a message.
pub(super) fn amount(message: &Message) -> (&str, i64) {
    let key = message.data["key"].as_str().expect("every message has a key");
    (key, message.data["n"].as_i64().expect("every message has an amount"))
}

/// Offsets that were folded, in order.
pub(super) fn folded(history: &[Effect]) -> Vec<i64> {
    let offset = |effect: &Effect| if let Effect::Folded(at) = effect { Some(*at) } else { None };
    history.iter().filter_map(offset).collect()
}

/// One fold, written down a second time and differently from [`Folding`], which it checks.
pub(super) fn replay(history: &[Effect], log: &[Message]) -> Rows {
    let mut open: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let mut note = None;
    for effect in history {
        match effect {
            Effect::Folded(at) => {
                let (key, n) = amount(&log[usize::try_from(*at).expect("an offset")]);
                let ns = open.entry(key).or_default();
                ns.push(n);
                if ns.len() == usize::try_from(CLOSE_AT).expect("small") {
                    open.remove(key);
                }
            }
            Effect::Flushed(key) => {
                open.remove(key.as_str());
            }
            Effect::Noted(n) => note = Some(*n),
        }
    }
    let row = |ns: &[i64]| json!({"count": ns.len(), "sum": ns.iter().sum::<i64>()});
    let mut rows: Rows = open.iter().map(|(key, ns)| ((*key).to_owned(), row(ns))).collect();
    rows.extend(note.map(|n| (NOTE.to_owned(), json!(n))));
    rows
}

/// A worker on one partition: it has read the rows, and writes down what it does to them.
pub(super) struct Folding<'a> {
    rows: Rows,
    /// Prefix of the ids of what it emits; `None` leaves naming to the broker.
    name: Option<&'a str>,
    pub(super) work: Work,
}

impl<'a> Folding<'a> {
    pub(super) fn new(rows: &Rows, name: Option<&'a str>) -> Self {
        Self { rows: rows.clone(), name, work: Work::default() }
    }

    fn op(&mut self, op: Op) {
        apply(&mut self.rows, std::slice::from_ref(&op));
        self.work.ops.push(op);
    }

    fn emit(&mut self, place: Place, data: Value, what: &str) {
        let txn = self.name.map(|name| format!("{name}.{what}"));
        self.work.emits.push((place, Message { txn, data }));
    }

    /// Folds a message; several ops for one key of a batch are sent as they come.
    pub(super) fn message(&mut self, offset: i64, message: &Message) {
        let (key, n) = amount(message);
        let (count, sum) = self.rows.get(key).map_or((0, 0), totals);
        let row = json!({"count": count + 1, "sum": sum + n});
        self.op(Op::Upsert(key.to_owned(), row.clone()));
        if count + 1 == CLOSE_AT {
            self.close(key, row, &offset.to_string());
        }
        self.work.effects.push(Effect::Folded(offset));
    }

    fn close(&mut self, key: &str, mut row: Value, what: &str) {
        self.op(Op::Delete(key.to_owned()));
        row["key"] = json!(key);
        self.emit(Place::sink(key), row, what);
    }

    /// Emits an open row before its time; nothing where there is none.
    pub(super) fn flush(&mut self, choice: usize) {
        let open: Vec<String> = self.rows.keys().filter(|key| *key != NOTE).cloned().collect();
        if open.is_empty() {
            return;
        }
        let key = &open[choice % open.len()];
        self.close(key, self.rows[key].clone(), &format!("flush.{key}"));
        self.work.effects.push(Effect::Flushed(key.clone()));
    }

    /// Leaves a remark in the state, and one on a sink.
    pub(super) fn note(&mut self, n: i64) {
        self.op(Op::Upsert(NOTE.to_owned(), json!(n)));
        self.emit(Place::sink("notes"), json!({"note": n}), "note");
        self.work.effects.push(Effect::Noted(n));
    }

    /// Feeds the query's own source.
    pub(super) fn feed(&mut self, lane: usize, data: Value) {
        self.emit(Place::lane(lane), data, "feed");
    }
}
