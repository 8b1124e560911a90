//! The vectors of the operator contract, run natively. `|` stands for U+001F in keys.

mod chain;
mod event_time;
mod gates;
mod shard;
mod windows;

use foldmq_guest::testing::TestHost;
use foldmq_guest::{Emits, Op, Outcome, Pipeline, Timestamp};
use serde::{Deserialize, Serialize};

/// 2026-08-04T10:00:00.000Z.
const T0: i64 = 1_785_837_600_000;

#[derive(Clone, Deserialize, Serialize)]
struct Event {
    #[serde(default)]
    k: Option<String>,
    #[serde(default)]
    ts: Timestamp,
    v: f64,
}

/// Sends windows out as `[key, start, end, value]`.
fn with_bounds<V: Serialize + 'static>(emits: Emits<V, foldmq_guest::Closed>) -> Pipeline {
    emits.map(|v, w| (w.key.clone(), w.start.ms(), w.end.ms(), v)).sink("out")
}

/// An outcome's ops as text.
fn ops(outcome: &Outcome) -> Vec<String> {
    let text = |op: &Op| match op {
        Op::Upsert(row) => format!("{} {}", row.key.replace('\u{1f}', "|"), row.value),
        Op::Delete(key) => format!("delete {}", key.replace('\u{1f}', "|")),
    };
    outcome.ops.iter().map(text).collect()
}

/// An outcome's payloads, without the wrapping of values that are no objects.
fn payloads(outcome: &Outcome) -> Vec<String> {
    let bare = |payload: &str| {
        let value = payload.strip_prefix(r#"{"value":"#).and_then(|p| p.strip_suffix('}'));
        value.unwrap_or(payload).to_owned()
    };
    outcome.emits.iter().map(|emit| bare(&emit.payload)).collect()
}

/// Folds these messages as one batch; times in ms.
fn batch(host: &mut TestHost, messages: &[(&str, i64)]) -> Outcome {
    for (payload, created_at) in messages {
        host.push(*payload, *created_at);
    }
    host.run_batch(usize::MAX).expect("the batch is folded")
}
