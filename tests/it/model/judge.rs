//! Whether answers are what they must be, field by field.

use serde_json::{Value, json};

use super::generate::Pop;
use super::model::{Model, Place, Run};
use super::request::{Acked, Cycled, Done, Expected};
use super::wire::{Names, Verdict, same};
use crate::support::Answer;

impl Names {
    /// Whether an entry of an answer, at a place in it, is what it must be.
    pub(super) fn judge(
        &mut self,
        model: &Model,
        index: usize,
        found: &Value,
        expected: &Expected,
    ) -> Verdict {
        match expected {
            Expected::Pushed { place, message, offset, duplicate } => {
                let id = &found["message_id"];
                let txn = message.txn.as_ref().map_or_else(|| id.clone(), |txn| json!(txn));
                let status = if *duplicate { "duplicate" } else { "queued" };
                let whole = json!({"index": index, "message_id": id, "transaction_id": txn,
                    "queueName": self.queue(place), "status": status, "offset": offset});
                same("push", found, &whole)?;
                self.see(place, *offset, id)
            }
            Expected::Acked(item, acked) => {
                let txn = self.txn(model, item.lane, item.target);
                judge_ack(index, &txn, found, acked)
            }
            Expected::Transacted(outcome) => self.judge_transaction(model, found, outcome),
            Expected::Cycled(lane, outcome) => self.judge_cycle(*lane, found, outcome),
            Expected::Extended { lease, lanes, .. } => {
                let until = &found["newExpiresAt"];
                if until.is_string() == lanes.is_empty() {
                    return Err(format!("an end where a lease lives, and only there: {found}"));
                }
                let whole = json!({"leaseId": lease, "success": !lanes.is_empty(),
                    "renewed": lanes.len(), "newExpiresAt": until, "expiresAt": until,
                    "lease_expires_at": until});
                same("extend", found, &whole)
            }
        }
    }

    fn judge_transaction(
        &mut self,
        model: &Model,
        found: &Value,
        outcome: &Result<Vec<Done>, Vec<&'static str>>,
    ) -> Verdict {
        let id = &found["transactionId"];
        let done = match outcome {
            Ok(done) => done,
            Err(reasons) => {
                let (reason, error) = (&found["reason"], &found["error"]);
                let prefix = if *reason == "duplicate" { "QDUP" } else { "QTXN" };
                let told = error.as_str().is_some_and(|text| text.starts_with(prefix));
                if !told || !reasons.iter().any(|r| reason == r) {
                    return Err(format!("{found} gives none of {reasons:?}"));
                }
                let whole = json!({"transactionId": id, "success": false, "reason": reason,
                    "error": error, "results": []});
                return same("transaction", found, &whole);
            }
        };
        let results = found["results"].as_array().cloned().unwrap_or_default();
        let mut shown = Vec::with_capacity(done.len());
        for (index, (done, found)) in done.iter().zip(&results).enumerate() {
            shown.push(match done {
                Done::Acked { lane, target, dead } => json!({"index": index, "type": "ack",
                    "success": true, "transactionId": self.txn(model, *lane, *target),
                    "error": null, "dlq": dead}),
                Done::Pushed { place, offset, duplicate } => {
                    let id = &found["messageId"];
                    self.see(place, *offset, id)?;
                    let at = usize::try_from(*offset).expect("an offset");
                    let txn = model.logs[place][at].txn.as_ref();
                    let txn = txn.map_or_else(|| id.clone(), |txn| json!(txn));
                    let mut entry = json!({"index": index, "type": "push", "success": true,
                        "transactionId": txn, "messageId": id, "queueName": self.queue(place)});
                    if *duplicate {
                        entry["duplicate"] = json!(true);
                    }
                    entry
                }
            });
        }
        let whole = json!({"transactionId": id, "success": true, "results": shown});
        same("transaction", found, &whole)
    }

    fn judge_cycle(
        &self,
        lane: usize,
        found: &Value,
        outcome: &Result<Cycled, &'static str>,
    ) -> Verdict {
        let mut whole = json!({"success": true, "query_id": self.query,
            "partition_id": self.partition(lane), "queueName": self.queues[0]});
        match outcome {
            Ok(cycled) => {
                let pushes = cycled.pushes.iter().zip(0..);
                let pushes = pushes.map(|((place, stored, base), at)| {
                    let mut shown = json!({"queue": self.queue(place),
                        "partition": place.partition, "baseOffset": base,
                        "status": if *stored { "queued" } else { "duplicate" }});
                    if *stored {
                        shown["createdAt"] = found["push_results"][at]["createdAt"].clone();
                    }
                    shown
                });
                whole["state_ops_applied"] = json!(cycled.ops);
                whole["push_results"] = pushes.collect();
                whole["ack_result"] = json!(cycled.ack.map(|(count, released)| json!({
                    "success": true, "count": count, "lease_released": released, "dlq": false})));
            }
            Err(word) => {
                if !found["error"].as_str().is_some_and(|text| text.contains(word)) {
                    return Err(format!("{found} does not say {word:?}"));
                }
                whole["success"] = json!(false);
                whole["queueName"] = Value::Null;
                whole["state_ops_applied"] = json!(0);
                whole["push_results"] = json!([]);
                whole["ack_result"] = Value::Null;
                whole["error"] = found["error"].clone();
            }
        }
        same("cycle", found, &whole)
    }

    /// Whether a pop's answer holds these runs and nothing else.
    pub(super) fn judge_pop(
        &mut self,
        model: &Model,
        pop: &Pop,
        answer: &Answer,
        runs: &[Run],
    ) -> Verdict {
        let Some(first) = runs.first() else {
            return same("empty pop", &json!([answer.status, answer.text]), &json!([204, ""]));
        };
        let body = &answer.body;
        let lease = if pop.auto_ack { json!("") } else { body["leaseId"].clone() };
        let offsets = runs.iter().flat_map(|run| (run.from..=run.to).map(move |at| (run, at)));
        let mut messages = Vec::new();
        let (mut before, mut newest) = (None, String::new());
        for ((run, offset), found) in offsets.zip(body["messages"].as_array().into_iter().flatten())
        {
            let place = Place::lane(run.lane);
            self.see(&place, offset, &found["id"])?;
            let created = found["createdAt"].as_str().unwrap_or_default().to_owned();
            if before == Some(run.lane) && created < newest {
                return Err(format!("times run backwards: {found}"));
            }
            (before, newest) = (Some(run.lane), created);
            let message = &model.log(run.lane)[usize::try_from(offset).expect("an offset")];
            messages.push(json!({
                "id": found["id"], "transactionId": self.txn(model, run.lane, Some(offset)),
                "traceId": null, "data": message.data, "producerSub": null,
                "createdAt": found["createdAt"], "partitionId": self.partition(run.lane),
                "partition": place.partition, "leaseId": lease,
                "consumerGroup": self.groups[pop.group], "deliveryAttempt": run.attempt,
            }));
        }
        let whole = json!({
            "success": true, "queue": self.queues[0], "leaseId": lease,
            "partition": Place::lane(first.lane).partition,
            "partitionId": self.partition(first.lane), "consumerGroup": self.groups[pop.group],
            "messages": messages, "partitionsClaimed": runs.len(),
        });
        same("status", &json!(answer.status), &json!(200))?;
        same("pop", body, &whole)?;
        let wanted: i64 = runs.iter().map(Run::len).sum();
        same("messages", &json!(messages.len()), &json!(wanted))
    }
}

fn judge_ack(index: usize, txn: &str, found: &Value, acked: &Acked) -> Verdict {
    let error = &found["error"];
    if let Some(word) = acked.error
        && !error.as_str().is_some_and(|text| text.contains(word))
    {
        return Err(format!("{found} does not say {word:?}"));
    }
    let error = if acked.error.is_some() { error.clone() } else { Value::Null };
    let whole = json!({"index": index, "transactionId": txn, "success": acked.error.is_none(),
        "error": error, "leaseReleased": acked.released, "dlq": acked.dead, "noop": acked.noop});
    same("ack", found, &whole)
}
