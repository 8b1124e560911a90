//! What windows, gates and pass-through have in common, and the stages behind them.

use crate::model::{Context, Entry, Failure, Manifest, Message, Outcome, Reads, Tally};
use crate::refuse::{Refuse, Tallies};

/// What an engine answers: rows it needs, or values with everything else that a call gives.
pub(crate) enum Next<V, O> {
    Need(Reads),
    Done(Folded<V, O>),
}

/// A finished call before its values became messages. `outcome.emits` holds what precedes them.
pub(crate) struct Folded<V, O> {
    pub(crate) values: Vec<(V, O)>,
    pub(crate) outcome: Outcome,
}

impl<V, O> Folded<V, O> {
    pub(crate) fn empty() -> Self {
        Self { values: Vec::new(), outcome: Outcome::default() }
    }
}

/// A window, gate or pass-through, with the stages after it.
pub(crate) trait Engine<V, O> {
    fn describe(&self, manifest: &mut Manifest);
    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Next<V, O>, Failure>;
    fn resume(&mut self, rows: Vec<Entry>) -> Result<Next<V, O>, Failure>;
    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Folded<V, O>, Failure>;
}

/// An engine with one stage behind it.
pub(crate) struct Staged<V, O, F> {
    pub(crate) inner: Box<dyn Engine<V, O>>,
    pub(crate) stage: F,
}

impl<V, O: Clone, F> Staged<V, O, F> {
    fn apply<U>(&self, folded: Folded<V, O>) -> Result<Folded<U, O>, Failure>
    where
        F: Fn(V, &O, &mut dyn FnMut(Result<U, Refuse>)),
    {
        let mut values = Vec::with_capacity(folded.values.len());
        let mut tallies = Tallies::default();
        let mut failed = Ok(());
        for (value, origin) in folded.values {
            (self.stage)(value, &origin, &mut |result| match result {
                Ok(value) => values.push((value, origin.clone())),
                Err(Refuse::Skip(cause)) => tallies.add(cause),
                Err(Refuse::Fail(failure)) => failed = Err(failure),
                Err(Refuse::Reject(reason)) => failed = Err(Failure::Halt(reason)),
            });
            failed.clone()?;
        }
        let mut outcome = folded.outcome;
        add_tallies(&mut outcome.tallies, tallies.into_list());
        Ok(Folded { values, outcome })
    }
}

fn add_tallies(to: &mut Vec<Tally>, more: Vec<Tally>) {
    for tally in more {
        match to.iter_mut().find(|t| t.cause == tally.cause) {
            Some(known) => known.count = known.count.saturating_add(tally.count),
            None => to.push(tally),
        }
    }
}

impl<V, U, O, F> Engine<U, O> for Staged<V, O, F>
where
    O: Clone,
    F: Fn(V, &O, &mut dyn FnMut(Result<U, Refuse>)),
{
    fn describe(&self, manifest: &mut Manifest) {
        self.inner.describe(manifest);
    }

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Next<U, O>, Failure> {
        match self.inner.start(ctx, batch)? {
            Next::Need(reads) => Ok(Next::Need(reads)),
            Next::Done(folded) => self.apply(folded).map(Next::Done),
        }
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Next<U, O>, Failure> {
        match self.inner.resume(rows)? {
            Next::Need(reads) => Ok(Next::Need(reads)),
            Next::Done(folded) => self.apply(folded).map(Next::Done),
        }
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Folded<U, O>, Failure> {
        let folded = self.inner.flush(ctx, rows)?;
        self.apply(folded)
    }
}
