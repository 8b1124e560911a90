//! Gates: messages pass in order until one is denied; it and what follows stay in the queue.
//!
//! A message passes whole or not at all. When one of its records is denied, every change that its
//! other records made to the state is undone.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::{Engine, Folded, Next};
use crate::intake::{self, Intake, KeyFn, Record, SourceFn};
use crate::json;
use crate::limits::Verdict;
use crate::model::{
    Ack, Clock, Context, Entry, Failure, Manifest, Message, Op, Outcome, Reads, Upsert,
};
use crate::origin::Passed;

/// What a gate knows about a record besides the record.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The record's key, which names the state.
    pub key: &'a str,
    /// The broker's clock at the claim, the same for the whole batch.
    pub now: i64,
    /// Name of the source partition.
    pub partition: &'a str,
    /// Id of the source partition.
    pub partition_id: &'a str,
}

pub(crate) struct Gate<T, F> {
    source: SourceFn<T>,
    key: Option<KeyFn<T>>,
    admit: F,
    pending: Option<Pending<T>>,
}

/// A batch that waits for its rows.
struct Pending<T> {
    ctx: Context,
    batch: usize,
    intake: Intake<T>,
}

/// The states of a batch, and how to go back to those before the message at hand.
struct States<S> {
    live: BTreeMap<String, S>,
    undo: Vec<(String, Option<S>)>,
    /// Keys of what passed, and the order of their first pass.
    touched: BTreeMap<String, usize>,
}

impl<T, F> Gate<T, F> {
    pub(crate) fn new(source: SourceFn<T>, key: Option<KeyFn<T>>, admit: F) -> Self {
        Self { source, key, admit, pending: None }
    }
}

/// A gate with the type of its state.
pub(crate) struct Stateful<T, S, F> {
    pub(crate) gate: Gate<T, F>,
    pub(crate) state: std::marker::PhantomData<fn() -> S>,
}

impl<T, S, F> Stateful<T, S, F>
where
    S: Clone + Default + Serialize + DeserializeOwned,
    F: Fn(&mut S, &T, &At<'_>) -> Verdict,
{
    fn run(&self, pending: Pending<T>, rows: &[Entry]) -> Result<Folded<T, Passed>, Failure> {
        let Pending { ctx, batch, mut intake } = pending;
        let mut states = States { live: load(rows)?, undo: Vec::new(), touched: BTreeMap::new() };
        let mut records = std::mem::take(&mut intake.records).into_iter().peekable();
        let mut values = Vec::new();
        let mut ack = Ack::All;
        let mut settled = batch;
        let source = intake::Source::of(&ctx);
        for index in 0..batch {
            let mut message = Vec::new();
            while let Some(record) = records.next_if(|record| record.index == index) {
                message.push(record);
            }
            match self.message(&ctx, &message, &mut states) {
                Verdict::Allow => {
                    let passed = |r: Record<T>| (r.data, Passed::new(r.key, source.clone()));
                    values.extend(message.into_iter().map(passed));
                }
                Verdict::Deny { retry_after_ms } => {
                    settled = index;
                    let count = u32::try_from(index)
                        .map_err(|e| Failure::Halt(format!("the batch is too large: {e}")))?;
                    ack = Ack::Prefix { count, retry_after_ms };
                    break;
                }
            }
        }
        let tallies = intake.tallies(settled).into_list();
        let mut rejects = intake.rejects;
        rejects.retain(|r| usize::try_from(r.index).is_ok_and(|index| index < settled));
        let ops = states.into_ops().map_err(Failure::Halt)?;
        let outcome = Outcome { ops, rejects, tallies, ack, ..Outcome::default() };
        Ok(Folded { values, outcome })
    }

    /// Asks for each record of a message; a denial undoes the message.
    fn message(&self, ctx: &Context, records: &[Record<T>], states: &mut States<S>) -> Verdict {
        states.undo.clear();
        for record in records {
            let known = states.undo.iter().any(|(key, _)| *key == record.key);
            if !known {
                let before = states.live.get(&record.key).cloned();
                states.undo.push((record.key.clone(), before));
            }
            let state = states.live.entry(record.key.clone()).or_default();
            let at = At {
                key: &record.key,
                now: ctx.now,
                partition: &ctx.partition,
                partition_id: &ctx.partition_id,
            };
            let verdict = (self.gate.admit)(state, &record.data, &at);
            if verdict != Verdict::Allow {
                states.undo();
                return verdict;
            }
        }
        for record in records {
            let next = states.touched.len();
            states.touched.entry(record.key.clone()).or_insert(next);
        }
        Verdict::Allow
    }
}

fn load<S: DeserializeOwned>(rows: &[Entry]) -> Result<BTreeMap<String, S>, Failure> {
    let state = |row: &Entry| match serde_json::from_str(&row.value) {
        Ok(state) => Ok((row.key.clone(), state)),
        Err(e) => Err(Failure::Halt(format!("the state row {:?}: {e}", row.key))),
    };
    rows.iter().map(state).collect()
}

impl<S: Serialize> States<S> {
    fn undo(&mut self) {
        for (key, before) in self.undo.drain(..) {
            match before {
                Some(state) => self.live.insert(key, state),
                None => self.live.remove(&key),
            };
        }
    }

    fn into_ops(self) -> Result<Vec<Op>, String> {
        let Self { live, touched, .. } = self;
        let mut touched: Vec<(String, usize)> = touched.into_iter().collect();
        touched.sort_unstable_by_key(|(_, order)| *order);
        let mut ops = Vec::with_capacity(touched.len());
        for (key, _) in touched {
            let Some(state) = live.get(&key) else {
                continue;
            };
            let mut value = Vec::new();
            json::write(&mut value, state)?;
            ops.push(Op::Upsert(Upsert { key, value: json::text(value)?, due_at: None }));
        }
        Ok(ops)
    }
}

/// Keys of gates are state keys as they are; a leading `__` is the host's.
fn gate_key(key: &str) -> Result<(), String> {
    if key.is_empty() || key.starts_with("__") {
        return Err(format!("the key {key:?} cannot name the state of a gate"));
    }
    intake::plain_key(key)
}

impl<T, S, F> Engine<T, Passed> for Stateful<T, S, F>
where
    S: Clone + Default + Serialize + DeserializeOwned,
    F: Fn(&mut S, &T, &At<'_>) -> Verdict,
{
    fn describe(&self, manifest: &mut Manifest) {
        manifest.clock = Clock::Host;
    }

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Next<T, Passed>, Failure> {
        let time = |_: &T, message: &Message| Ok(message.created_at);
        let (source, key) = (&self.gate.source, self.gate.key.as_ref());
        let intake = intake::read(source, key, &ctx, &batch, &time, gate_key)?;
        let mut keys: Vec<String> = intake.records.iter().map(|r| r.key.clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let pending = Pending { ctx, batch: batch.len(), intake };
        if keys.is_empty() {
            return self.run(pending, &[]).map(Next::Done);
        }
        self.gate.pending = Some(pending);
        Ok(Next::Need(Reads { keys, ..Reads::default() }))
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Next<T, Passed>, Failure> {
        match self.gate.pending.take() {
            Some(pending) => self.run(pending, &rows).map(Next::Done),
            None => Err(Failure::Halt("resume came without a batch that waits for rows".into())),
        }
    }

    fn flush(&mut self, _: Context, _: Vec<Entry>) -> Result<Folded<T, Passed>, Failure> {
        Ok(Folded::empty())
    }
}
