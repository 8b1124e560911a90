//! Compares what the broker holds with the model.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::drive::{Driver, Ends};
use super::fold;
use super::model::{Place, QUERY, Queue};
use super::wire::{Verdict, same};

impl Driver<'_> {
    /// Compares cursors, offsets, state and dead letters with the model; one query.
    pub(super) async fn look(&mut self) -> Verdict {
        let group = &self.names.groups[QUERY];
        let mut found = self.sql.picture(&self.names.queues, group).await;
        let mut ends = Ends::new();
        for partition in found.as_array_mut().into_iter().flatten() {
            let name = partition["partition"].as_str().unwrap_or_default().to_owned();
            let source = partition["queue"] == 0;
            let queue = if source { Queue::Source } else { Queue::Sink };
            let place = Place { queue, partition: name };
            let id = partition.as_object_mut().and_then(|p| p.remove("id"));
            let id = id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            let lane = (0..self.model.lanes.len()).find(|lane| Place::lane(*lane) == place);
            if *self.names.partitions.entry(place).or_insert_with(|| id.clone()) != id {
                return Err(format!("another partition: {partition}"));
            }
            for cursor in partition["cursors"].as_array_mut().into_iter().flatten() {
                let end = cursor.as_object_mut().and_then(|c| c.remove("ends"));
                let lease = cursor["lease"].as_str().map(ToOwned::to_owned);
                let group = cursor["group"].as_u64().and_then(|g| usize::try_from(g).ok());
                if let (Some(end), Some(lease)) = (end.and_then(|e| e.as_i64()), lease)
                    && cursor["live"] == true
                {
                    ends.insert((lane.unwrap_or(0), group.unwrap_or(0)), (lease, end));
                }
            }
        }
        same("the store", &found, &self.model.picture())?;
        for (key, (lease, end)) in &ends {
            // An extension never shortens; nothing else moves it.
            if let Some((old, before)) = self.ends.get(key)
                && old == lease
                && (end < before || (end > before && !self.extended(lease)))
            {
                return Err(format!("the end of lease {lease} moved from {before} to {end}"));
            }
        }
        self.ends = ends;
        Ok(())
    }

    /// Whether the last step may have extended a lease.
    fn extended(&self, lease: &str) -> bool {
        self.played.last().is_some_and(|step| step.contains("Extend") && step.contains(lease))
    }

    pub(super) async fn look_at_state(&self, lane: usize) -> Verdict {
        let id = self.names.partitions.get(&Place::lane(lane));
        let body = json!({"query_id": self.names.query, "partition_id": id});
        let answer = self.clients[1].post("/streams/v1/state/get", &body).await.expect(200);
        let rows = answer["rows"].as_array().cloned().unwrap_or_default();
        let found: Vec<Value> = rows.iter().map(|r| json!([r["key"], r["value"]])).collect();
        let expected = self.model.lanes[lane].rows.iter().map(|(key, value)| json!([key, value]));
        same("state", &json!(found), &expected.collect())
    }

    /// Reads both queues from the beginning: every message once, in order, as it was sent.
    pub(super) async fn read_back(&mut self) -> Verdict {
        let mut emitted = vec![(0, 0); 1];
        for queue in [Queue::Source, Queue::Sink] {
            let name = &self.names.queues[usize::from(queue == Queue::Sink)];
            let path = format!(
                "/api/v1/pop/queue/{name}?consumerGroup=reader&subscriptionMode=all\
                 &autoAck=true&batch=10000&partitions=64"
            );
            let answer = self.clients[0].get(&path).await;
            let mut found: BTreeMap<Place, Vec<Value>> = BTreeMap::new();
            for message in answer.body["messages"].as_array().into_iter().flatten() {
                let partition = message["partition"].as_str().unwrap_or_default().to_owned();
                let txn = &message["transactionId"];
                let txn = if *txn == message["id"] { &Value::Null } else { txn };
                let shown = json!([txn, message["data"]]);
                found.entry(Place { queue, partition }).or_default().push(shown);
                if queue == Queue::Sink {
                    emitted.push(fold::totals(&message["data"]));
                }
            }
            let logs = self.model.logs.iter().filter(|(place, _)| place.queue == queue);
            let expected: BTreeMap<Place, Vec<Value>> = logs
                .map(|(place, log)| {
                    (place.clone(), log.iter().map(|m| json!([m.txn, m.data])).collect())
                })
                .collect();
            if found != expected {
                return Err(format!("read back {found:?}, expected {expected:?}"));
            }
        }
        self.balance(&emitted)
    }

    /// What was folded is in an emitted row or in an open one, once.
    fn balance(&self, emitted: &[(i64, i64)]) -> Verdict {
        let rows = self.model.lanes.iter().flat_map(|lane| lane.rows.values());
        let there = emitted.iter().copied().chain(rows.map(fold::totals));
        let there = there.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let lanes = 0..self.model.lanes.len();
        let folded = lanes.flat_map(|lane| {
            let log = self.model.log(lane);
            let offsets = fold::folded(&self.model.lanes[lane].history);
            offsets.into_iter().map(|at| fold::amount(&log[usize::try_from(at).expect("small")]).1)
        });
        let folded = folded.fold((0, 0), |sum: (i64, i64), n| (sum.0 + 1, sum.1 + n));
        same("balance", &json!([there.0, there.1]), &json!([folded.0, folded.1]))
    }
}
