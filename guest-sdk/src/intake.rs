//! From a batch of messages to records: decoding, stages, key, time.
//!
//! A message is taken whole or not at all: when one of its records is rejected, none of them is
//! folded.

use std::borrow::Cow;
use std::rc::Rc;

use crate::model::{Context, Failure, Message, Reject};
use crate::refuse::{Refuse, Tallies};

/// Separates the parts of a state key.
pub(crate) const US: char = '\u{1f}';

/// A message and where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// The message as the broker gave it.
    pub message: &'a Message,
    /// The call's context.
    pub ctx: &'a Context,
}

/// Decodes a message and runs the stages: gives any number of records or verdicts.
pub(crate) type SourceFn<T> = Box<dyn Fn(&Meta<'_>, &mut dyn FnMut(Result<T, Refuse>))>;
/// The key of a record.
pub(crate) type KeyFn<T> = Box<dyn Fn(&T) -> String>;

/// The partition that a batch comes from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) partition: String,
    pub(crate) partition_id: String,
}

impl Source {
    /// The partition's name as a target; never empty.
    pub(crate) fn name(&self) -> &str {
        if self.partition.is_empty() { "Default" } else { &self.partition }
    }

    pub(crate) fn of(ctx: &Context) -> Rc<Self> {
        Rc::new(Self { partition: ctx.partition.clone(), partition_id: ctx.partition_id.clone() })
    }
}

/// A record that survived the stages.
pub(crate) struct Record<T> {
    /// Index of its message in the batch.
    pub(crate) index: usize,
    pub(crate) time: i64,
    pub(crate) key: String,
    pub(crate) data: T,
}

/// What a batch gave, in order of the batch.
pub(crate) struct Intake<T> {
    pub(crate) records: Vec<Record<T>>,
    pub(crate) rejects: Vec<Reject>,
    /// Index of the message and cause of each record that was left out.
    pub(crate) skips: Vec<(usize, Cow<'static, str>)>,
}

impl<T> Intake<T> {
    /// Counts of what was left out of the messages before `end`.
    pub(crate) fn tallies(&mut self, end: usize) -> Tallies {
        let mut tallies = Tallies::default();
        for (index, cause) in self.skips.drain(..) {
            if index < end {
                tallies.add(cause);
            }
        }
        tallies
    }
}

/// Reads a batch. `time` judges each record's time, `key_ok` its key.
pub(crate) fn read<T>(
    source: &SourceFn<T>,
    key: Option<&KeyFn<T>>,
    ctx: &Context,
    batch: &[Message],
    time: &dyn Fn(&T, &Message) -> Result<i64, Refuse>,
    key_ok: fn(&str) -> Result<(), String>,
) -> Result<Intake<T>, Failure> {
    let mut intake =
        Intake { records: Vec::with_capacity(batch.len()), rejects: Vec::new(), skips: Vec::new() };
    for (index, message) in batch.iter().enumerate() {
        let (records_before, skips_before) = (intake.records.len(), intake.skips.len());
        let (mut rejected, mut failed) = (None, None);
        source(&Meta { message, ctx }, &mut |record| {
            if rejected.is_some() || failed.is_some() {
                return;
            }
            let placed = record.and_then(|data| {
                let time = time(&data, message)?;
                let key = match key {
                    Some(key) => key(&data),
                    None => ctx.partition_id.clone(),
                };
                key_ok(&key).map_err(Refuse::Reject)?;
                Ok(Record { index, time, key, data })
            });
            match placed {
                Ok(record) => intake.records.push(record),
                Err(Refuse::Skip(cause)) => intake.skips.push((index, cause)),
                Err(Refuse::Reject(reason)) => rejected = Some(reason),
                Err(Refuse::Fail(failure)) => failed = Some(failure),
            }
        });
        if let Some(failure) = failed {
            return Err(failure);
        }
        if let Some(reason) = rejected {
            intake.records.truncate(records_before);
            intake.skips.truncate(skips_before);
            let index = u32::try_from(index)
                .map_err(|e| Failure::Halt(format!("the batch is too large: {e}")))?;
            intake.rejects.push(Reject { index, reason });
        }
    }
    Ok(intake)
}

/// Keys that no state key can be made of.
pub(crate) fn plain_key(key: &str) -> Result<(), String> {
    match key.find([US, '\0']) {
        Some(at) => Err(format!("the key {key:?} has a control character at byte {at}")),
        None => Ok(()),
    }
}
