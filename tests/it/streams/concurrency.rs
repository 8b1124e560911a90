//! Many cycles at once (streams X3, X4, X13, X14).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{GROUP, Lane, QUERIES, World, committed, item, numbers, upsert};
use crate::support::TestServer;

/// One side of the crossing: pops its partition of `from` and emits to several of `to`.
struct Worker {
    client: crate::support::Client,
    query: String,
    group: &'static str,
    from: &'static str,
    to: &'static str,
    partition: String,
    sinks: Vec<String>,
}

impl Worker {
    /// One batch; gives (messages settled, messages emitted).
    async fn step(&self, n: usize) -> (u64, u64) {
        let path = format!("{}/partition/{}", self.from, self.partition);
        let query = format!("consumerGroup={}&subscriptionMode=all&batch=3", self.group);
        let Some(lane) = Lane::of(self.client.pop(&path, &query).await).pop() else {
            return (0, 0);
        };
        let items: Vec<Value> =
            self.sinks.iter().map(|sink| item(self.to, sink, json!({"n": n}))).collect();
        let body = json!({"query_id": self.query, "partition_id": lane.id,
            "consumer_group": self.group, "ack": lane.done(), "push_items": items,
            "state_ops": [upsert("n", &json!(n)), upsert("m", &json!(n))]});
        let answer = committed(self.client.cycle(&body).await);
        assert_eq!(answer["push_results"].as_array().map(Vec::len), Some(items.len()));
        (lane.messages.len() as u64, items.len() as u64)
    }
}

/// streams X3, X4: two queries whose sinks are each other's sources, 64 workers on two brokers,
/// each cycle over several sinks in opposite orders, among pushes and batch acks: every cycle
/// commits, every message is there, and PostgreSQL finds no deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn crossing_cycles_never_deadlock() {
    const WORKERS: usize = 64;
    const SIDES: usize = WORKERS / 2;
    const STEPS: usize = 12;
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let a = w.client.register("a", "left").await;
    let b = w.client.register("b", "right").await;
    let names: Vec<String> = (0..SIDES).map(|n| format!("p{n}")).collect();
    for queue in ["left", "right"] {
        for name in &names {
            w.client.push(queue, name, &numbers(0..STEPS)).await;
        }
    }
    let workers = (0..WORKERS).map(|n| {
        let client = if n % 4 < 2 { w.client.clone() } else { second.client() };
        let ahead = n % 2 == 0;
        let mut sinks: Vec<String> =
            (0..4).map(|k| names[(n / 2 + k * 7) % SIDES].clone()).collect();
        if !ahead {
            sinks.reverse();
        }
        if n % 16 == 3 {
            sinks.push(format!("new{n}"));
        }
        Worker {
            client,
            query: if ahead { a.clone() } else { b.clone() },
            group: if ahead { "streams.a" } else { "streams.b" },
            from: if ahead { "left" } else { "right" },
            to: if ahead { "right" } else { "left" },
            partition: names[n / 2].clone(),
            sinks,
        }
    });
    let (settled, emitted) = (AtomicU64::new(0), AtomicU64::new(0));
    let cycles = workers.map(async |worker: Worker| {
        for n in 0..STEPS {
            let (done, more) = worker.step(n).await;
            settled.fetch_add(done, Ordering::SeqCst);
            emitted.fetch_add(more, Ordering::SeqCst);
        }
    });
    let pushed = AtomicU64::new(0);
    let pushes = async {
        for n in 0..STEPS {
            let both = names
                .iter()
                .rev()
                .flat_map(|name| ["left", "right"].map(|queue| item(queue, name, json!({"n": n}))));
            let items: Vec<Value> = both.collect();
            let answer = w.client.post("/api/v1/push", &json!({"items": items})).await.expect(201);
            assert!(answer.as_array().expect("a list").iter().all(|i| i["status"] == "queued"));
            pushed.fetch_add(items.len() as u64, Ordering::SeqCst);
        }
    };
    let acks = async {
        for n in 0..STEPS {
            let queue = if n % 2 == 0 { "left" } else { "right" };
            let query = "consumerGroup=plain&subscriptionMode=all&batch=60&partitions=20";
            let acks: Vec<Value> = w.client.pop(queue, query).await;
            let acks: Vec<Value> = acks
                .iter()
                .map(|m| {
                    json!({"transactionId": m["transactionId"], "leaseId": m["leaseId"],
                           "partitionId": m["partitionId"], "status": "completed"})
                })
                .collect();
            let body = json!({"consumerGroup": "plain", "acknowledgments": acks});
            let answer = w.client.post("/api/v1/ack/batch", &body).await.expect(200);
            assert!(answer.as_array().expect("a list").iter().all(|a| a["success"] == true));
        }
    };
    tokio::join!(join_all(cycles), pushes, acks);

    let total = "select sum(next_offset)::bigint from queen.log_partitions";
    let expected =
        emitted.load(Ordering::SeqCst) + pushed.load(Ordering::SeqCst) + (2 * SIDES * STEPS) as u64;
    assert_eq!(u64::try_from(w.count(total).await).expect("a count"), expected);
    let consumed = "select sum(lc.total_consumed)::bigint from queen.log_consumers lc
                    join queen.log_groups using (group_no) where name like 'streams.%'";
    let consumed = u64::try_from(w.count(consumed).await).expect("a count");
    assert_eq!(consumed, settled.load(Ordering::SeqCst));
    assert!(consumed > (WORKERS * STEPS) as u64, "the workers had work: {consumed}");
    second.stop().await;
    let database = Arc::clone(&w.server.database);
    w.stop().await;
    super::no_deadlock(&database).await;
}

/// streams X14: a cycle, an ordinary ack and an ordinary nack of one lease: one of them settles it,
/// and the others are told that the lease is not theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_settled_once() {
    let w = World::start().await;
    let mut id = String::new();
    let (mut cycles, mut next) = (0, 0);
    for round in 0..30 {
        id = w.feed("p", 2 * round..2 * round + 2).await;
        let lane = w.lease("p", GROUP, "batch=2").await;
        assert_eq!(lane.numbers()[0], next);
        let ack = async |status: &str| {
            let acks: Vec<Value> = lane
                .messages
                .iter()
                .map(|m| {
                    json!({"transactionId": m["transactionId"], "partitionId": id,
                           "leaseId": lane.lease, "status": status})
                })
                .collect();
            let acks = json!({"consumerGroup": GROUP, "acknowledgments": acks});
            let answer = w.client.post("/api/v1/ack/batch", &acks).await.expect(200);
            answer[0]["success"] == true
        };
        let cycle = async {
            let more = json!({"ack": lane.done(), "push_items": [item("out", "p", round)]});
            w.client.cycle(&w.body(&id, &more)).await
        };
        let extend = async {
            let path = format!("/api/v1/lease/{}/extend", lane.lease);
            let answer = w.client.post(&path, &json!({"seconds": 60})).await;
            assert!(answer.body["success"].is_boolean(), "{}", answer.text);
        };
        // Each of the three has its turn to be sent first.
        let (cycle, done, nacked) = match round % 3 {
            0 => {
                let (cycle, done, nacked, ()) =
                    tokio::join!(cycle, ack("completed"), ack("retry"), extend);
                (cycle, done, nacked)
            }
            1 => {
                let (done, (), nacked, cycle) =
                    tokio::join!(ack("completed"), extend, ack("retry"), cycle);
                (cycle, done, nacked)
            }
            _ => {
                let (nacked, cycle, (), done) =
                    tokio::join!(ack("retry"), cycle, extend, ack("completed"));
                (cycle, done, nacked)
            }
        };
        let by_cycle = cycle["success"] == true;
        let winners = [by_cycle, done, nacked].iter().filter(|won| **won).count();
        assert_eq!(winners, 1, "round {round}: {cycle} ack {done} nack {nacked}");
        if !by_cycle {
            super::refused(cycle, "lease");
        }
        cycles += i64::from(by_cycle);
        next += if nacked { 0 } else { 2 };
    }
    let cursor = w.cursor(&id, GROUP).await;
    assert_eq!(
        (&cursor["committed"], &cursor["total_consumed"]),
        (&json!(next.cast_signed() - 1), &json!(next))
    );
    assert!(cursor["lease_id"].is_null(), "{cursor}");
    let emitted = "select coalesce(sum(lp.next_offset), 0)::bigint from queen.log_partitions lp
                   join queen.queues q using (queue_no) where q.name = 'out'";
    assert_eq!(w.count(emitted).await, cycles);
    w.stop().await;
}

/// streams X13, X5: resets among cycles of many shards: readers see whole cycles only, no call
/// fails, and PostgreSQL finds no deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn resets_among_cycles_never_deadlock() {
    const PARTITIONS: usize = 16;
    let w = World::start().await;
    let mut ids = Vec::new();
    for n in 0..PARTITIONS {
        ids.push(w.feed(&format!("p{n}"), 0..1).await);
    }
    // A query a round: half of its shards exist, the others are born while it is reset.
    for round in 0..40 {
        let name = format!("r{round}");
        let query = w.client.register(&name, "in").await;
        let cycle = async |n: usize, step: usize| {
            let mut ops = vec![upsert("a", &json!(step)), upsert("b", &json!(step))];
            if n.is_multiple_of(3) {
                ops.reverse();
            }
            w.commit(&ids[n], &json!({"query_id": query, "state_ops": ops})).await;
            let read = json!({"query_id": query, "partition_id": ids[n]});
            let rows = super::rows(&w.client.post(super::STATE, &read).await);
            let whole = rows.is_empty() || (rows.len() == 2 && rows[0].1 == rows[1].1);
            assert!(whole, "half a cycle: {rows:?}");
        };
        join_all((0..PARTITIONS).step_by(2).map(|n| cycle(n, 0))).await;
        let cycles = (0..PARTITIONS).map(async |n| {
            for step in 1..3 {
                cycle(n, step).await;
            }
        });
        let resets = async {
            for step in 0..3 {
                let body = json!({"name": name, "source_queue": "in", "reset": true,
                                  "config_hash": format!("h{step}")});
                w.client.post(QUERIES, &body).await.expect(200);
            }
        };
        tokio::join!(join_all(cycles), resets);
    }
    let database = Arc::clone(&w.server.database);
    w.stop().await;
    super::no_deadlock(&database).await;
}
