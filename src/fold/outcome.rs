//! Checks what a guest returned, before anyone else sees it.
//!
//! After a check an outcome can be committed as it stands: every size is within its limit, every
//! text can be kept by PostgreSQL, every value is a JSON document that `jsonb` takes, every sink is
//! one of the manifest's, every index is one of the batch. A violation is the guest's fault and
//! refuses the whole outcome; only texts that explain something (reasons of rejects) are cut
//! instead.

#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::{collections::HashSet, fmt};

use serde::Serialize;

use super::{
    json::{self, Kept},
    limits::{Limits, cut, storable},
    types::{Ack, Emit, Manifest, Op, Outcome, Reads, Reject, Tally, WATERMARK_KEY},
};

/// A violation of what an outcome, a manifest or a request for rows may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{field}{}: {problem}{}", Index(*.index), Bound(*.asked, *.limit))]
pub struct Violation {
    /// Name of the field, as in the interface: `emits.queue`.
    pub field: &'static str,
    /// Index of the element in the list that the field starts with.
    pub index: Option<usize>,
    /// What is wrong, in words.
    pub problem: String,
    /// The size or number that was found, where a limit is at fault.
    pub asked: Option<u64>,
    /// The limit itself.
    pub limit: Option<u64>,
}

struct Index(Option<usize>);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |index| write!(f, " (element {index})"))
    }
}

struct Bound(Option<u64>, Option<u64>);

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(asked), Some(limit)) => write!(f, " ({asked}, limit {limit})"),
            _ => Ok(()),
        }
    }
}

/// What an outcome is checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) limits: &'a Limits,
    pub(super) manifest: &'a Manifest,
    pub(super) batch_len: usize,
    pub(super) watermark: Option<i64>,
}

impl Outcome {
    /// Refuses what must not be committed, and brings rejects into the order of the batch.
    pub(super) fn check(&mut self, rules: &Rules<'_>) -> Result<(), Violation> {
        let limits = rules.limits;
        check_ops("ops", &self.ops, limits)?;
        count("emits", self.emits.len(), limits.emits)?;
        for (index, emit) in self.emits.iter().enumerate() {
            check_emit(emit, rules).map_err(at(index))?;
        }
        let acked = check_ack(self.ack, rules.batch_len)?;
        check_rejects(&mut self.rejects, acked, rules)?;
        count("tallies", self.tallies.len(), limits.tallies)?;
        for (index, tally) in self.tallies.iter().enumerate() {
            check_tally(tally, limits).map_err(at(index))?;
        }
        match (rules.watermark, self.watermark) {
            (Some(old), Some(new)) if new < old => {
                let problem = format!("{new} is below the watermark {old} that the context gave");
                Err(violation("watermark", problem))
            }
            _ => Ok(()),
        }
    }
}

impl Reads {
    /// Refuses what can't be asked for; sorts keys and prefixes and drops what stands twice.
    pub(super) fn check(&mut self, limits: &Limits) -> Result<(), Violation> {
        let asked = self.keys.len().saturating_add(self.prefixes.len());
        count("need.keys and need.prefixes", asked, limits.rows)?;
        for (field, keys) in [("need.keys", &mut self.keys), ("need.prefixes", &mut self.prefixes)]
        {
            for (index, key) in keys.iter().enumerate() {
                check_key(field, key, limits).map_err(at(index))?;
            }
            keys.sort_unstable();
            keys.dedup();
        }
        Ok(())
    }
}

impl Manifest {
    /// Refuses what no registration could keep; sorts the sinks and drops what stands twice.
    pub(super) fn check(&mut self, limits: &Limits) -> Result<(), Violation> {
        check_name("manifest.name", &self.name, limits)?;
        check_name("manifest.version", &self.version, limits)?;
        count("manifest.sinks", self.sinks.len(), limits.sinks)?;
        for (index, sink) in self.sinks.iter().enumerate() {
            check_queue("manifest.sinks", sink, limits).map_err(at(index))?;
        }
        self.sinks.sort_unstable();
        self.sinks.dedup();
        Ok(())
    }
}

/// Checks changes of the state, of an outcome or of a migration.
pub(super) fn check_ops(field: &'static str, ops: &[Op], limits: &Limits) -> Result<(), Violation> {
    count(field, ops.len(), limits.ops)?;
    for (index, op) in ops.iter().enumerate() {
        check_op(op, limits).map_err(at(index))?;
    }
    Ok(())
}

fn check_op(op: &Op, limits: &Limits) -> Result<(), Violation> {
    check_key("ops.key", op.key(), limits)?;
    if op.key() == WATERMARK_KEY {
        let problem =
            format!("`{WATERMARK_KEY}` belongs to the broker; return `watermark` instead");
        return Err(violation("ops.key", problem));
    }
    match op {
        Op::Upsert { value, .. } => {
            bounded("ops.value", "too many bytes", value.len(), limits.value_bytes)?;
            json::check(value, limits.json_depth, Kept::AsJsonb)
                .map_err(|problem| violation("ops.value", problem))
        }
        Op::Delete { .. } => Ok(()),
    }
}

fn check_emit(emit: &Emit, rules: &Rules<'_>) -> Result<(), Violation> {
    let limits = rules.limits;
    check_queue("emits.queue", &emit.queue, limits)?;
    if rules.manifest.sinks.binary_search(&emit.queue).is_err() {
        let problem = format!("`{}` is none of the sinks of the manifest", emit.queue);
        return Err(violation("emits.queue", problem));
    }
    check_name("emits.partition", &emit.partition, limits)?;
    bounded("emits.payload", "too many bytes", emit.payload.len(), limits.payload_bytes)?;
    json::check(&emit.payload, limits.json_depth, Kept::AsText)
        .map_err(|problem| violation("emits.payload", problem))?;
    let Some(id) = &emit.transaction_id else {
        return Ok(());
    };
    let field = "emits.transaction-id";
    bounded(field, "too many bytes", id.len(), limits.transaction_id_bytes)?;
    no_controls(field, id)
}

fn check_ack(ack: Ack, batch_len: usize) -> Result<usize, Violation> {
    let Ack::Prefix { count, .. } = ack else {
        return Ok(batch_len);
    };
    let count = to_usize(count);
    bounded("ack.prefix.count", "more than the batch holds", count, batch_len)?;
    Ok(count)
}

fn check_rejects(rejects: &mut [Reject], acked: usize, rules: &Rules<'_>) -> Result<(), Violation> {
    count("rejects", rejects.len(), rules.batch_len)?;
    let mut seen = HashSet::with_capacity(rejects.len());
    for (index, reject) in rejects.iter_mut().enumerate() {
        let message = to_usize(reject.index);
        let problem = if message >= rules.batch_len {
            format!("message {message} is outside the batch of {}", rules.batch_len)
        } else if message >= acked {
            format!("message {message} is outside the acked prefix of {acked}")
        } else if !seen.insert(message) {
            format!("message {message} is rejected twice")
        } else {
            reject.reason = storable(cut(&reject.reason, rules.limits.text_bytes));
            continue;
        };
        return Err(violation("rejects.index", problem)).map_err(at(index));
    }
    rejects.sort_unstable_by_key(|reject| reject.index);
    Ok(())
}

fn check_tally(tally: &Tally, limits: &Limits) -> Result<(), Violation> {
    not_empty("tallies.cause", &tally.cause)?;
    check_name("tallies.cause", &tally.cause, limits)
}

fn check_key(field: &'static str, key: &str, limits: &Limits) -> Result<(), Violation> {
    bounded(field, "too many bytes", key.len(), limits.key_bytes)?;
    if key.contains('\0') {
        return Err(violation(field, "holds the character U+0000".to_owned()));
    }
    Ok(())
}

fn check_queue(field: &'static str, name: &str, limits: &Limits) -> Result<(), Violation> {
    not_empty(field, name)?;
    check_name(field, name, limits)
}

fn check_name(field: &'static str, name: &str, limits: &Limits) -> Result<(), Violation> {
    bounded(field, "too many bytes", name.len(), limits.name_bytes)?;
    no_controls(field, name)
}

fn not_empty(field: &'static str, text: &str) -> Result<(), Violation> {
    if text.is_empty() { Err(violation(field, "is empty".to_owned())) } else { Ok(()) }
}

fn no_controls(field: &'static str, text: &str) -> Result<(), Violation> {
    match text.chars().find(|c| *c < ' ') {
        None => Ok(()),
        Some(c) => {
            Err(violation(field, format!("holds the control character U+{:04X}", u32::from(c))))
        }
    }
}

fn count(field: &'static str, asked: usize, limit: usize) -> Result<(), Violation> {
    bounded(field, "too many elements", asked, limit)
}

fn bounded(
    field: &'static str,
    problem: &str,
    asked: usize,
    limit: usize,
) -> Result<(), Violation> {
    if asked <= limit {
        return Ok(());
    }
    let [asked, limit] = [asked, limit].map(|n| Some(n as u64));
    Err(Violation { asked, limit, ..violation(field, problem.to_owned()) })
}

fn violation(field: &'static str, problem: String) -> Violation {
    Violation { field, index: None, problem, asked: None, limit: None }
}

fn at(index: usize) -> impl FnOnce(Violation) -> Violation {
    move |violation| Violation { index: Some(index), ..violation }
}

fn to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
