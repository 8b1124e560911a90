//! What follows a failed guest call.
//!
//! A fault that the same inputs give again is bisected to the one message that causes it: what
//! stands before it is committed, the message is given up (or the query paused), the rest goes on.
//! A deadline proves nothing about a message: the query backs off, and halts after some strikes.

use serde_json::{Value, json};

use super::Handle;
use super::batch;
use super::guest::CallError;
use super::worker::{Flow, Work};
use crate::db::hosted::{HostedRow, RunState};
use crate::fold::{self, Ack, ErrorKind, Failure, Outcome};
use crate::types::cycle::NextClaim;
use crate::types::limits::{HOSTED_BATCH_BYTES_MAX, HOSTED_LEASE_MS};

/// Undecided failures in a row after which a query halts.
const STRIKES_MAX: u32 = 6;
/// Log lines kept in a record.
const LOG_LINES: usize = 20;

/// A fault as status and dead letters show it.
pub(super) fn detail(row: &HostedRow, cause: &CallError) -> Value {
    let mut detail = json!({
        "module": hex::encode(row.module_hash),
        "message": cause.to_string(),
    });
    if let CallError::Fold(error) = cause {
        let lines = error.logs().lines.iter().rev().take(LOG_LINES).rev();
        detail["code"] = json!(error.code());
        detail["blame"] = json!(error.blame());
        detail["backtrace"] = json!(error.backtrace());
        detail["logs"] = json!(lines.collect::<Vec<_>>());
        detail["logs_note"] = json!(error.logs().note());
    } else {
        detail["code"] = json!("state");
    }
    detail
}

/// What a failure asks for.
enum Verdict {
    /// One message is to blame: find it.
    Bisect,
    /// Try again later; halt the query after some strikes.
    BackOff,
    /// Try again later, as often as it takes.
    Later,
    /// Stop the query.
    Halt,
}

fn verdict(error: &CallError) -> Verdict {
    let CallError::Fold(error) = error else { return Verdict::Halt };
    match error.kind() {
        ErrorKind::Failure { failure: Failure::Halt, .. } => Verdict::Halt,
        ErrorKind::Failure { failure: Failure::Retry, .. } => Verdict::Later,
        _ if error.is_deterministic() => Verdict::Bisect,
        _ if error.blame() == fold::Blame::Guest => Verdict::BackOff,
        _ => Verdict::Later,
    }
}

impl Handle {
    /// Decides what follows a failed call over the whole batch.
    pub(super) async fn failed(&self, work: &mut Work<'_>, cause: CallError, on: bool) -> Flow {
        let run = work.run;
        let metrics = self.shared.broker.metrics();
        let code = match &cause {
            CallError::Fold(error) => error.code(),
            _ => "state",
        };
        metrics.hosted_cycles.with_label_values(&[run.label(), code]).inc();
        let mut shown = detail(&run.row, &cause);
        shown["partition"] = json!(work.partition.name);
        shown["from_offset"] = json!(work.messages.first().map(|m| m.offset));
        match verdict(&cause) {
            Verdict::Bisect => self.bisect(work, shown, on).await,
            Verdict::Halt => {
                self.record(&run.row, &shown).await;
                self.give_up(work, super::worker::HOST_PAUSE);
                self.halt(run, RunState::Halted, &cause.to_string()).await;
                Flow::Done
            }
            Verdict::BackOff | Verdict::Later => {
                self.record(&run.row, &shown).await;
                let (strikes, wait) = run.strike();
                self.give_up(work, wait);
                if strikes >= STRIKES_MAX && matches!(verdict(&cause), Verdict::BackOff) {
                    let reason = format!("{strikes} failures in a row: {cause}");
                    self.halt(run, RunState::Halted, &reason).await;
                }
                Flow::Done
            }
        }
    }

    /// Finds the first message with which the batch fails; commits what stands before it.
    async fn bisect(&self, work: &mut Work<'_>, shown: Value, on: bool) -> Flow {
        // The prefix of `good` messages folds, the one of `bad` fails.
        let (mut good, mut bad) = (0, work.messages.len());
        let mut last = shown;
        while bad - good > 1 {
            let middle = usize::midpoint(good, bad);
            match self.fold(work, middle).await {
                Ok(_) => good = middle,
                Err(CallError::Changed) => return Flow::Again,
                Err(cause) if matches!(verdict(&cause), Verdict::Bisect) => {
                    bad = middle;
                    last = detail(&work.run.row, &cause);
                }
                Err(other) => {
                    tracing::info!(query = work.run.label(), %other, "bisection put off");
                    let (_, wait) = work.run.strike();
                    self.give_up(work, wait);
                    return Flow::Done;
                }
            }
        }
        if good > 0 {
            return self.commit_good(work, good, on).await;
        }
        self.guilty(work, last, on).await
    }

    /// Commits the prefix that folds; the next batch begins with the guilty message.
    async fn commit_good(&self, work: &mut Work<'_>, good: usize, on: bool) -> Flow {
        match self.fold(work, good).await {
            Ok(finished) => {
                let commit =
                    super::worker::Commit { finished: &finished, n: good, on, dead: Vec::new() };
                let flow = self.commit(work, commit).await;
                if matches!(flow, Flow::Done) {
                    self.shared.broker.offer(work.lanes, work.pid);
                }
                flow
            }
            Err(CallError::Changed) => Flow::Again,
            Err(cause) => {
                tracing::warn!(query = work.run.label(), %cause, "a pure fold changed its mind");
                self.give_up(work, super::worker::HOST_PAUSE);
                Flow::Done
            }
        }
    }

    /// Gives the first message of the batch up, or pauses the query.
    async fn guilty(&self, work: &mut Work<'_>, mut shown: Value, on: bool) -> Flow {
        let run = work.run;
        let Some(message) = work.messages.first().cloned() else { return Flow::Done };
        shown["partition"] = json!(work.partition.name);
        shown["offset"] = json!(message.offset);
        shown["transaction_id"] = json!(message.frame.transaction_id());
        let reason = shown["message"].as_str().unwrap_or("the fold failed").to_owned();
        tracing::warn!(
            query = run.label(),
            partition = work.partition.name,
            offset = message.offset,
            reason,
            "poison message"
        );
        if run.row.pause_on_poison {
            self.record(&run.row, &shown).await;
            self.give_up(work, super::worker::HOST_PAUSE);
            let reason = format!("poison at offset {}: {reason}", message.offset);
            self.halt(run, RunState::Paused, &reason).await;
            return Flow::Done;
        }
        self.record(&run.row, &shown).await;
        let mut tallies = Vec::new();
        let dead = if work.queue.options.dead_letter {
            vec![batch::dead_letter(&message, reason, Some(shown), 0)]
        } else {
            tallies.push(fold::Tally { cause: "dropped".to_owned(), count: 1 });
            Vec::new()
        };
        let nothing = Outcome {
            ops: Vec::new(),
            emits: Vec::new(),
            rejects: Vec::new(),
            tallies,
            ack: Ack::All,
            watermark: work.shard.watermark_ms,
        };
        let settlement = batch::settle(work.lease, 1, work.messages.len(), true);
        let next = on.then(|| NextClaim {
            lease: uuid::Uuid::now_v7(),
            batch: run.batch(),
            bytes: HOSTED_BATCH_BYTES_MAX,
            lease_ms: HOSTED_LEASE_MS,
        });
        let flow = self.commit_as(work, &nothing, dead, settlement, 1, next, None).await;
        if matches!(flow, Flow::Done) {
            self.shared.broker.offer(work.lanes, work.pid);
        }
        flow
    }

    /// Counts messages that were given up in a committed cycle.
    pub(super) async fn given_up(&self, row: &HostedRow, n: i64) {
        let db = self.shared.broker.db();
        if let Err(cause) = db.hosted_dead_letters(row.query.no, n).await {
            tracing::warn!(query = row.query.name, %cause, "dead letters were not counted");
        }
    }
}
