//! From a batch and what the guest returned to a cycle. Pure.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::cache::WATERMARK;
use crate::broker::ClaimedMessage;
use crate::db::hosted::HostedRow;
use crate::fold::{Op, Outcome};
use crate::types::cycle::{Cycle, DeadLetter, Hosted, NextClaim, Settlement, SinkAppend, StateOp};
use crate::types::id::{DEFAULT_PARTITION, PartitionId};
use crate::types::json;

/// Where emits of a call come from: part of the ids that the host derives for them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// A batch that began at this offset.
    Batch(i64),
    /// A flush of the shard at this version.
    Flush(i64),
}

/// What a cycle is made of beside the outcome.
#[derive(Clone, Debug)]
pub(super) struct Frame<'a> {
    pub(super) row: &'a HostedRow,
    pub(super) partition: PartitionId,
    pub(super) origin: Origin,
    pub(super) expected_version: i64,
    pub(super) settlement: Settlement,
    pub(super) messages: i64,
    pub(super) backoff_ms: i64,
    pub(super) next: Option<NextClaim>,
    /// Whether given-up messages are recorded, or only dropped and counted.
    pub(super) keep_dead: bool,
}

/// State ops of an outcome, the watermark row last (operators, section 9).
pub(super) fn state_ops(outcome: &Outcome) -> Vec<StateOp> {
    let mut ops: Vec<StateOp> = outcome
        .ops
        .iter()
        .map(|op| match op {
            Op::Upsert { key, value, due_at } => StateOp::Upsert {
                key: key.clone(),
                value: value.clone(),
                due_ms: due_at.or_else(|| window_end_ms(value)),
            },
            Op::Delete { key } => StateOp::Delete { key: key.clone() },
        })
        .collect();
    if let Some(at) = outcome.watermark {
        ops.push(StateOp::Upsert {
            key: WATERMARK.to_owned(),
            value: format!("{{\"eventTimeMs\":{at}}}"),
            due_ms: None,
        });
    }
    ops
}

fn window_end_ms(value: &str) -> Option<i64> {
    let end = json::window_end(value)?.ceil();
    // Beyond the 53 bits that a JSON number carries exactly there is no instant.
    #[expect(clippy::cast_possible_truncation, reason = "whole and bounded")]
    (end.abs() < 9e15).then_some(end as i64)
}

/// The id of an emit that the guest gave none: a replay of the same call gives the same id.
fn emit_id(frame: &Frame<'_>, index: usize) -> String {
    let mut hash = Sha256::new();
    hash.update(b"foldmq emit\0");
    hash.update(frame.row.query.id.as_bytes());
    hash.update(frame.row.query.config_hash.as_bytes());
    hash.update(frame.partition.0.as_bytes());
    match frame.origin {
        Origin::Batch(offset) => hash.update([&[0], offset.to_be_bytes().as_slice()].concat()),
        Origin::Flush(version) => hash.update([&[1], version.to_be_bytes().as_slice()].concat()),
    }
    hash.update((index as u64).to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// The record of a message that was given up.
pub(super) fn dead_letter(
    message: &ClaimedMessage,
    reason: String,
    detail: Option<serde_json::Value>,
    retries: i32,
) -> DeadLetter {
    DeadLetter {
        offset: message.offset,
        message_id: message.frame.message_id,
        transaction_id: message.frame.transaction_id(),
        payload: message.frame.payload.clone(),
        producer_sub: message.frame.producer_sub.clone(),
        trace_id: message.frame.trace_id,
        created_at: message.created_at,
        reason,
        detail,
        retries,
    }
}

/// The cycle of an outcome over these messages (none in a flush).
pub(super) fn cycle(
    frame: &Frame<'_>,
    outcome: &Outcome,
    ops: Vec<StateOp>,
    messages: &[ClaimedMessage],
) -> Cycle {
    let row = frame.row;
    let emits = outcome
        .emits
        .iter()
        .enumerate()
        .map(|(index, emit)| SinkAppend {
            queue: emit.queue.clone(),
            partition: if emit.partition.is_empty() {
                DEFAULT_PARTITION.to_owned()
            } else {
                emit.partition.clone()
            },
            payload: emit.payload.clone(),
            message_id: None,
            transaction_id: Some(
                emit.transaction_id
                    .clone()
                    .filter(|id| !id.is_empty())
                    .unwrap_or_else(|| emit_id(frame, index)),
            ),
        })
        .collect();
    let mut tallies: BTreeMap<String, u64> = BTreeMap::new();
    for tally in &outcome.tallies {
        *tallies.entry(tally.cause.clone()).or_default() += tally.count;
    }
    let mut dead_letters = Vec::new();
    for reject in &outcome.rejects {
        *tallies.entry("rejected".to_owned()).or_default() += 1;
        let message = usize::try_from(reject.index).ok().and_then(|at| messages.get(at));
        if let (Some(message), true) = (message, frame.keep_dead) {
            let reason = format!("rejected by the fold: {}", reject.reason);
            let module = hex::encode(row.module_hash);
            let detail = serde_json::json!({"module": module, "cause": "rejected"});
            dead_letters.push(dead_letter(message, reason, Some(detail), 0));
        }
    }
    Cycle {
        tenant: row.query.tenant,
        query_id: row.query.id,
        partition_id: frame.partition,
        group: row.query.group(),
        ops,
        emits,
        settlement: frame.settlement.clone(),
        dead_letters,
        hosted: Some(Hosted {
            expected_version: frame.expected_version,
            timers: row.timers,
            idle_ms: i64::from(row.idle_ms),
            watermark_ms: outcome.watermark,
            backoff_ms: frame.backoff_ms,
            messages: frame.messages,
            tallies,
            next: frame.next,
        }),
    }
}

/// Settlement of the first `count` of `n` messages.
pub(super) fn settle(lease: Uuid, count: usize, n: usize, release: bool) -> Settlement {
    let count_n = i64::try_from(count).unwrap_or(i64::MAX);
    if count == n && release {
        Settlement::Completed { lease, count: count_n }
    } else {
        Settlement::Partial { lease, count: count_n, last_transaction_id: None, release }
    }
}
