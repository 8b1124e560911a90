//! The answer of a pop. Payloads are copied as they are stored, never parsed again.

use std::sync::Arc;

use serde::Serialize;

use crate::broker::{Pop, PopScope, Popped, PoppedMessage};
use crate::http::answer::Json;

/// What the broker chose in the client's place.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Echo {
    pub(super) partitions: i32,
    pub(super) batch: i32,
    pub(super) wait_ms: u64,
}

/// A pop that has something to show.
pub(super) struct Shown<'a> {
    pop: &'a Pop,
    popped: &'a Popped,
    echo: Option<Echo>,
    conflation: bool,
    /// Quoted lease id, `""` where nothing is leased.
    lease: String,
}

impl<'a> Shown<'a> {
    /// `None` where the answer is a bare 204: no message, and no key that must be carried.
    pub(super) fn of(pop: &'a Pop, popped: &'a Popped, echo: Option<Echo>) -> Option<Self> {
        // Without any source, the wish of the request stands for the policy (data-plane 148).
        let conflation = popped.conflation || (pop.conflation && !popped.conflict);
        let empty = popped.messages.is_empty();
        if empty && !conflation && !popped.conflict {
            return None;
        }
        let lease = popped.lease.filter(|_| !empty);
        let lease = lease.map_or_else(|| "\"\"".to_owned(), |lease| format!("\"{lease}\""));
        Some(Self { pop, popped, echo, conflation, lease })
    }

    pub(super) fn render(&self) -> Json {
        let messages = &self.popped.messages;
        let bytes: usize = messages.iter().map(|m| m.message.frame.payload.len() + 400).sum();
        let mut json = Json::with_capacity(bytes + 512);
        let queue = match &self.pop.scope {
            PopScope::Queue(name) | PopScope::Partition(name, _) => name,
            PopScope::Discovery { .. } => "",
        };
        json.raw("{\"success\":true,\"queue\":").text(queue);
        match messages.first() {
            Some(first) => {
                json.raw(",\"partition\":").text(&first.partition.name);
                json.raw(",\"partitionId\":").uuid(first.partition.id.0);
            }
            None => {
                json.raw(",\"partition\":\"\",\"partitionId\":\"\"");
            }
        }
        json.raw(",\"leaseId\":").raw(&self.lease);
        json.raw(",\"consumerGroup\":").text(&self.pop.group);
        json.raw(",\"messages\":[");
        self.messages(&mut json);
        json.raw("],\"partitionsClaimed\":").value(&self.popped.partitions);
        if self.conflation {
            json.raw(",\"conflation\":true");
        }
        if self.popped.conflict {
            json.raw(",\"conflationConflict\":true");
        }
        if let Some(echo) = &self.echo {
            json.raw(",\"autopilot\":").value(echo);
        }
        json.raw("}");
        json
    }

    fn messages(&self, json: &mut Json) {
        let mut before: Option<&PoppedMessage> = None;
        let mut tail = String::new();
        for popped in &self.popped.messages {
            let same = before.is_some_and(|b| Arc::ptr_eq(&b.partition, &popped.partition));
            if !same {
                tail = self.tail(popped);
            }
            json.raw(if before.is_some() { ",{\"id\":" } else { "{\"id\":" });
            before = Some(popped);
            let frame = &popped.message.frame;
            json.uuid(frame.message_id).raw(",\"transactionId\":");
            match &frame.transaction_id {
                Some(id) => json.text(id),
                None => json.uuid(frame.message_id),
            };
            json.raw(",\"traceId\":");
            match frame.trace_id {
                Some(id) => json.uuid(id),
                None => json.raw("null"),
            };
            json.raw(",\"data\":").raw(&frame.payload).raw(",\"producerSub\":");
            match &frame.producer_sub {
                Some(sub) => json.text(sub),
                None => json.raw("null"),
            };
            json.raw(",\"createdAt\":").time(popped.message.created_at).raw(&tail);
        }
    }

    /// What all messages of one partition end with.
    fn tail(&self, popped: &PoppedMessage) -> String {
        let name = serde_json::Value::from(popped.partition.name.as_str());
        let group = serde_json::Value::from(self.pop.group.as_str());
        format!(
            ",\"partitionId\":\"{}\",\"partition\":{name},\"leaseId\":{},\
             \"consumerGroup\":{group},\"deliveryAttempt\":{}}}",
            popped.partition.id.0,
            self.lease,
            popped.attempt.max(1),
        )
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::broker::{ClaimedMessage, Partition, implicit_options};
    use crate::db::group::Start;
    use crate::db::queue::Queue;
    use crate::log::Frame;
    use crate::types::id::{PartitionId, QueueNo, TenantId};

    fn pop(scope: PopScope, conflation: bool) -> Pop {
        Pop {
            scope,
            batch: 10,
            partitions: None,
            auto_ack: false,
            wait: None,
            lease_s: None,
            group: "g\"1".to_owned(),
            start: Start::All,
            conflation,
        }
    }

    fn message(partition: &Arc<Partition>, txn: Option<&str>, payload: &str) -> PoppedMessage {
        PoppedMessage {
            message: ClaimedMessage {
                offset: 0,
                created_at: Timestamp::from_microsecond(1_789_893_065_104_233).expect("in range"),
                frame: Frame {
                    message_id: Uuid::from_u128(1),
                    transaction_id: txn.map(str::to_owned),
                    trace_id: None,
                    producer_sub: None,
                    payload: payload.to_owned(),
                },
            },
            partition: Arc::clone(partition),
            attempt: 2,
        }
    }

    fn partition(name: &str) -> Arc<Partition> {
        let queue = Queue {
            no: QueueNo(1),
            id: Uuid::from_u128(9),
            tenant: TenantId::DEFAULT,
            name: "q".to_owned(),
            namespace: String::new(),
            task: String::new(),
            options: implicit_options(),
            created_at: Timestamp::UNIX_EPOCH,
        };
        let id = PartitionId::derive(queue.id, name);
        Arc::new(Partition { id, name: name.to_owned(), queue: Arc::new(queue) })
    }

    fn shown(pop: &Pop, popped: &Popped) -> Option<Value> {
        Shown::of(pop, popped, None).map(|shown| shown.render().parsed())
    }

    /// data-plane 3, 11, 43, 44, 53
    #[test]
    fn messages_carry_every_key_of_the_contract() {
        let (a, b) = (partition("a/ü"), partition("b"));
        let popped = Popped {
            lease: Some(Uuid::from_u128(5)),
            messages: vec![
                message(&a, Some("t\u{e9}"), "{\"kg\":2.50}"),
                message(&a, None, "null"),
                message(&b, None, "[]"),
            ],
            partitions: 2,
            conflation: false,
            conflict: false,
        };
        let pop = pop(PopScope::Queue("q".to_owned()), false);
        let text = shown(&pop, &popped).expect("messages");
        let lease = Uuid::from_u128(5).to_string();
        assert_eq!(text["queue"], "q");
        assert_eq!(text["partition"], "a/ü");
        assert_eq!(text["partitionsClaimed"], 2);
        assert_eq!(text["leaseId"], json!(lease));
        assert!(text.get("conflation").is_none() && text.get("autopilot").is_none());
        assert_eq!(
            text["messages"][0],
            json!({"id": Uuid::from_u128(1), "transactionId": "t\u{e9}", "traceId": null,
                "data": {"kg": 2.5}, "producerSub": null,
                "createdAt": "2026-09-20T08:31:05.104233Z", "partitionId": a.id.0,
                "partition": "a/ü", "leaseId": lease, "consumerGroup": "g\"1",
                "deliveryAttempt": 2})
        );
        assert_eq!(text["messages"][1]["transactionId"], Uuid::from_u128(1).to_string());
        assert_eq!(text["messages"][2]["partition"], "b");
        assert_eq!(text["messages"].as_array().map(Vec::len), Some(3));
    }

    /// data-plane 49, 74
    #[test]
    fn auto_ack_has_an_empty_lease_and_discovery_an_empty_queue() {
        let a = partition("a");
        let popped =
            Popped { messages: vec![message(&a, None, "1")], partitions: 1, ..Popped::default() };
        let scope = PopScope::Discovery { namespace: "n".to_owned(), task: String::new() };
        let text = shown(&pop(scope, false), &popped).expect("messages");
        assert_eq!((&text["queue"], &text["leaseId"]), (&json!(""), &json!("")));
        assert_eq!(text["messages"][0]["leaseId"], "");
    }

    /// data-plane 38, 148, 149, 151
    #[test]
    fn an_empty_answer_is_shown_only_for_its_keys() {
        let queue = || PopScope::Queue("q".to_owned());
        let lease = Some(Uuid::from_u128(5));
        assert_eq!(shown(&pop(queue(), false), &Popped { lease, ..Popped::default() }), None);
        let popped = Popped { lease, conflation: true, ..Popped::default() };
        let text = shown(&pop(queue(), true), &popped).expect("a key");
        assert_eq!(text["conflation"], true);
        assert_eq!((&text["partition"], &text["leaseId"]), (&json!(""), &json!("")));
        assert_eq!((&text["messages"], &text["partitionsClaimed"]), (&json!([]), &json!(0)));
        let popped = Popped { conflict: true, ..Popped::default() };
        let text = shown(&pop(queue(), true), &popped).expect("a key");
        assert_eq!(text["conflationConflict"], true);
        assert!(text.get("conflation").is_none());
        let text = shown(&pop(queue(), true), &Popped::default()).expect("a key");
        assert_eq!(text["conflation"], true);
    }
}
