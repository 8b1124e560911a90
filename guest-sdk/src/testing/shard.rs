//! The state of one partition, and the broker's checks of what a fold returns.

use std::collections::BTreeMap;

use super::TestError;
use crate::model::{Ack, Entry, Manifest, Op, Outcome, Reads, Upsert};

const WATERMARK_KEY: &str = "__wm__";
/// The broker's bound on a key.
const KEY_BYTES_MAX: usize = 1_024;

/// The state rows of one partition.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) rows: BTreeMap<String, Upsert>,
}

impl Shard {
    /// Writes a row; one that names no due time is due at its window's end.
    pub(super) fn put(&mut self, row: Upsert) {
        let due_at = row.due_at.or_else(|| window_end(&row.value));
        self.rows.insert(row.key.clone(), Upsert { due_at, ..row });
    }

    /// Applies the ops of an outcome; the watermark's row is the last.
    pub(super) fn apply(&mut self, mut outcome: Outcome) -> Outcome {
        if let Some(watermark) = outcome.watermark {
            outcome.ops.push(Op::Upsert(Upsert {
                key: WATERMARK_KEY.into(),
                value: format!(r#"{{"eventTimeMs":{watermark}}}"#),
                due_at: None,
            }));
        }
        for op in &outcome.ops {
            match op {
                Op::Delete(key) => drop(self.rows.remove(key)),
                Op::Upsert(row) => self.put(row.clone()),
            }
        }
        outcome
    }

    /// The rows that a fold asks for, by key.
    pub(super) fn read(&self, reads: &Reads) -> Result<Vec<Entry>, TestError> {
        if !reads.keys.is_sorted_by(|a, b| a < b) {
            return Err(TestError::Refused("the keys asked for are not sorted and unique".into()));
        }
        let wanted = |row: &&Upsert| {
            reads.keys.binary_search(&row.key).is_ok()
                || reads.prefixes.iter().any(|prefix| row.key.starts_with(prefix))
                || reads.due.is_some_and(|due| row.due_at.is_some_and(|at| at <= due))
        };
        let entry = |row: &Upsert| Entry { key: row.key.clone(), value: row.value.clone() };
        Ok(self.rows.values().filter(wanted).map(entry).collect())
    }
}

/// The checks of a broker; the first that fails is told.
pub(super) fn check(
    manifest: &Manifest,
    watermark: Option<i64>,
    outcome: &Outcome,
    batch: usize,
) -> Result<(), String> {
    for op in &outcome.ops {
        let (Op::Delete(key) | Op::Upsert(Upsert { key, .. })) = op;
        if key == WATERMARK_KEY {
            return Err("the row __wm__ is the host's".into());
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
            return Err(format!("{key:?} cannot be a state key"));
        }
        if let Op::Upsert(upsert) = op {
            is_json(&upsert.value)?;
        }
    }
    for emit in &outcome.emits {
        if !manifest.sinks.contains(&emit.queue) {
            return Err(format!("{:?} is not among the manifest's sinks", emit.queue));
        }
        if emit.partition.is_empty() {
            return Err(format!("a message for {:?} has no partition", emit.queue));
        }
        is_json(&emit.payload)?;
    }
    let acked = acked(outcome, batch);
    if acked > batch {
        return Err(format!("{acked} messages acked of {batch}"));
    }
    let mut next = 0;
    for reject in &outcome.rejects {
        let index = usize::try_from(reject.index).map_err(|e| e.to_string())?;
        if index < next || index >= acked {
            return Err(format!("reject of message {index}, {acked} acked"));
        }
        next = index + 1;
    }
    if outcome.watermark.is_some_and(|new| watermark.is_some_and(|old| new < old)) {
        return Err("the watermark goes back".into());
    }
    Ok(())
}

pub(super) fn acked(outcome: &Outcome, batch: usize) -> usize {
    match outcome.ack {
        Ack::All => batch,
        Ack::Prefix { count, .. } => usize::try_from(count).unwrap_or(usize::MAX),
    }
}

fn is_json(text: &str) -> Result<(), String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text)
        .map(drop)
        .map_err(|e| format!("{text:?} is no JSON: {e}"))
}

/// The due time of a row that says nothing else.
fn window_end(value: &str) -> Option<i64> {
    let value: serde_json::Value = serde_json::from_str(value).ok()?;
    value.get("windowEnd")?.as_i64()
}
