//! Requests and answers as JSON: the only place that knows names, routes and fields.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fold::Op;
use super::generate::Pop;
use super::model::{Message, Model, Place, Queue};
use super::request::{AckItem, Cycle, Operation, Request, Settle, Status, Target, Transaction};

/// What is wrong, in words.
pub(super) type Verdict = Result<(), String>;

/// The names of a schedule, and the ids that the broker gave.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) queues: [String; 2],
    pub(super) groups: [String; 2],
    pub(super) query: String,
    pub(super) partitions: BTreeMap<Place, String>,
    pub(super) ids: BTreeMap<(Place, i64), String>,
}

/// Fails unless two values are equal.
pub(super) fn same(what: &str, found: &Value, expected: &Value) -> Verdict {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found}, expected {expected}"))
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Completed => "completed",
        Status::Failed => "failed",
        Status::Retry => "retry",
        Status::Dead => "dlq",
    }
}

impl Names {
    pub(super) fn new(schedule: &str) -> Self {
        let name = format!("model.{schedule}");
        Self {
            queues: [name.clone(), format!("{name}.out")],
            groups: [format!("streams.{name}"), "beside".to_owned()],
            query: String::new(),
            partitions: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }

    pub(super) fn queue(&self, place: &Place) -> &str {
        &self.queues[usize::from(place.queue == Queue::Sink)]
    }

    /// The id of a message stays what it was at first sight.
    pub(super) fn see(&mut self, place: &Place, offset: i64, id: &Value) -> Verdict {
        let text = id.as_str().filter(|text| text.len() == 36);
        let text = text.ok_or_else(|| format!("{id} is no message id"))?;
        let known = self.ids.entry((place.clone(), offset)).or_insert_with(|| text.to_owned());
        same(&format!("id of {place:?} {offset}"), id, &json!(known))
    }

    pub(super) fn partition(&self, lane: usize) -> Value {
        json!(self.partitions.get(&Place::lane(lane)))
    }

    /// The transaction id of a message of a lane.
    pub(super) fn txn(&self, model: &Model, lane: usize, target: Target) -> String {
        let Some(at) = target else { return "never pushed".to_owned() };
        let place = Place::lane(lane);
        let message = &model.logs[&place][usize::try_from(at).expect("an offset")];
        let named = message.txn.clone();
        named.unwrap_or_else(|| self.ids.get(&(place, at)).cloned().unwrap_or_default())
    }

    fn message(&self, place: &Place, message: &Message) -> Value {
        let mut item = json!({"queue": self.queue(place), "partition": place.partition,
                              "payload": message.data});
        if let Some(txn) = &message.txn {
            item["transactionId"] = json!(txn);
        }
        item
    }

    /// Route and body.
    pub(super) fn request(&self, model: &Model, request: &Request) -> (String, Value) {
        match request {
            Request::Push(items) => {
                let items = items.iter().map(|(place, m)| self.message(place, m));
                ("/api/v1/push".to_owned(), json!({"items": items.collect::<Vec<_>>()}))
            }
            Request::Ack(ack) => {
                let shown = ack.items.iter().map(|i| self.ack(model, i, ack.lease.as_ref()));
                let mut shown: Vec<Value> = shown.collect();
                let group = json!(self.groups[ack.group]);
                if let [one] = shown.as_mut_slice() {
                    one["consumerGroup"] = group;
                    return ("/api/v1/ack".to_owned(), one.take());
                }
                let body = json!({"acknowledgments": shown, "consumerGroup": group});
                ("/api/v1/ack/batch".to_owned(), body)
            }
            Request::Transact(t) => ("/api/v1/transaction".to_owned(), self.transaction(model, t)),
            Request::Cycle(cycle) => ("/streams/v1/cycle".to_owned(), self.cycle(model, cycle)),
            Request::Extend { lease, seconds } => {
                (format!("/api/v1/lease/{lease}/extend"), json!({"seconds": seconds}))
            }
        }
    }

    fn ack(&self, model: &Model, item: &AckItem, lease: Option<&String>) -> Value {
        json!({"transactionId": self.txn(model, item.lane, item.target),
               "partitionId": self.partition(item.lane), "status": word(item.status),
               "leaseId": lease, "error": "no reason"})
    }

    fn transaction(&self, model: &Model, t: &Transaction) -> Value {
        let shown = |operation: &Operation| match operation {
            Operation::Push(place, message) => {
                let mut push = self.message(place, message);
                push["type"] = json!("push");
                push
            }
            Operation::Ack { group, lease, item } => {
                let mut ack = self.ack(model, item, lease.as_ref());
                ack["type"] = json!("ack");
                ack["consumerGroup"] = json!(self.groups[*group]);
                ack
            }
        };
        let operations: Vec<Value> = t.operations.iter().map(shown).collect();
        json!({"operations": operations, "requiredLeases": t.required})
    }

    fn cycle(&self, model: &Model, cycle: &Cycle) -> Value {
        let op = |op: &Op| match op {
            Op::Upsert(key, value) => json!({"type": "upsert", "key": key, "value": value}),
            Op::Delete(key) => json!({"type": "delete", "key": key}),
        };
        let ack = |lease: &str, status: &str, count: i64, last: Target| {
            let id = last.map(|_| self.txn(model, cycle.lane, last)).unwrap_or_default();
            json!({"leaseId": lease, "status": status, "count": count, "transactionId": id})
        };
        let (ack, release) = match &cycle.settle {
            Settle::Nothing => (Value::Null, true),
            Settle::Full { lease, count, last } => (ack(lease, "completed", *count, *last), true),
            Settle::Partial { lease, count, last } => (ack(lease, "ok", *count, *last), false),
            Settle::Nack { lease, release, word } => (ack(lease, word, 1, None), *release),
        };
        let items = cycle.work.emits.iter().map(|(place, m)| self.message(place, m));
        json!({
            "query_id": self.query, "partition_id": self.partition(cycle.lane),
            "consumer_group": self.groups[0], "ack": ack, "release_lease": release,
            "state_ops": cycle.work.ops.iter().map(op).collect::<Vec<_>>(),
            "push_items": items.collect::<Vec<_>>(),
        })
    }

    /// Route of a pop.
    pub(super) fn pop(&self, pop: &Pop) -> String {
        let lane = pop.lane.map(|lane| format!("/partition/{}", Place::lane(lane).partition));
        format!(
            "/api/v1/pop/queue/{}{}?consumerGroup={}&batch={}&partitions={}&autoAck={}\
             &subscriptionMode=all&leaseSeconds=1800",
            self.queues[0],
            lane.unwrap_or_default(),
            self.groups[pop.group],
            pop.batch,
            pop.partitions,
            pop.auto_ack,
        )
    }
}
