//! Outside workers while connections break: effects once, state and sinks as if nothing happened.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};

use super::{REQUEST_MAX, World};
use crate::support::{Answer, Client, PATIENCE, eventually, seeded, tell};

const PARTITIONS: [&str; 4] = ["a", "b", "c", "d"];
const MESSAGES: usize = 150;

/// A worker of the query `sum`, as an SDK is one: it asks again until it knows.
struct Worker<'a> {
    client: &'a Client,
    query: String,
    settled: &'a AtomicUsize,
    random: StdRng,
}

impl Worker<'_> {
    /// One request until something else than a failing store is answered.
    async fn ask(&self, path: &str, body: &Value) -> Answer {
        let text = body.to_string();
        eventually(path, async || {
            let asked = Instant::now();
            let request = self.client.request(Method::POST, path).body(text.clone());
            let answer = self.client.try_send(request).await.expect("an answer");
            assert!(asked.elapsed() < REQUEST_MAX, "{path} took {:?}", asked.elapsed());
            (answer.status < 500).then_some(answer)
        })
        .await
    }

    async fn run(mut self) {
        let pop = "/api/v1/pop/queue/in?batch=9&wait=true&timeout=300&consumerGroup=streams.sum\
                   &subscriptionMode=all&leaseSeconds=30";
        let deadline = Instant::now() + 3 * PATIENCE;
        while self.settled.load(Ordering::SeqCst) < PARTITIONS.len() * MESSAGES {
            assert!(Instant::now() < deadline, "{} settled", self.settled.load(Ordering::SeqCst));
            let answer = self.client.get(pop).await;
            if answer.status == 200 {
                let messages = answer.body["messages"].as_array().expect("messages").clone();
                self.fold(&messages).await;
            }
        }
    }

    /// Folds a batch of one partition, sometimes in two cycles under its lease.
    async fn fold(&mut self, messages: &[Value]) {
        let cut =
            if self.random.random() { 0 } else { self.random.random_range(0..messages.len()) };
        let (first, second) = messages.split_at(cut);
        if (first.is_empty() || self.cycle(first, false).await) && self.cycle(second, true).await {}
    }

    /// Whether the cycle is known to have taken effect, or to have done so before.
    async fn cycle(&mut self, messages: &[Value], release: bool) -> bool {
        let last = messages.last().expect("a message");
        let partition = &last["partitionId"];
        let get = json!({"query_id": self.query, "partition_id": partition, "keys": ["sum"]});
        let state = self.ask("/streams/v1/state/get", &get).await.expect(200);
        let before = state["rows"][0]["value"].as_i64().unwrap_or(0);
        let n = |message: &Value| message["data"]["n"].as_i64().expect("a number");
        let sum = before + messages.iter().map(n).sum::<i64>();
        let items: Vec<Value> = messages
            .iter()
            .map(|m| json!({"queue": "out", "partition": m["partition"], "payload": n(m)}))
            .collect();
        let ack = json!({"transactionId": last["transactionId"], "leaseId": last["leaseId"],
                         "status": "completed", "count": messages.len()});
        let body = json!({"query_id": self.query, "partition_id": partition,
            "consumer_group": "streams.sum", "ack": ack, "release_lease": release,
            "state_ops": [{"type": "upsert", "key": "sum", "value": sum}],
            "push_items": items});
        let answer = self.ask("/streams/v1/cycle", &body).await.expect(200);
        // A refusal after a lost answer: the lease has ended with the cycle, or the partial ack
        // was applied. Whoever holds the partition next reads its state anew.
        let text = answer["error"].as_str().unwrap_or_default().to_owned();
        let done = answer["success"] == true || text.contains("already applied");
        assert!(done || text.contains("lease"), "{answer}");
        done
    }
}

/// streams X7, X15, FB-32: cycles of outside workers whose commits lose their answers, among cut
/// connections: each message is in the state once and on the sink once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn outside_cycles_take_effect_once() {
    let mut random = seeded();
    let world = World::start().await;
    let client = &world.client;
    for partition in PARTITIONS {
        let payloads: Vec<Value> = (1..=MESSAGES).map(|n| json!({"n": n})).collect();
        client.push("in", partition, &payloads).await;
    }
    let query = client.register("sum", "in").await;
    let settled = AtomicUsize::new(0);
    let workers: Vec<_> = (0..3)
        .map(|_| Worker {
            client,
            query: query.clone(),
            settled: &settled,
            random: StdRng::seed_from_u64(random.random()),
        })
        .collect();
    let work = futures_util::future::join_all(workers.into_iter().map(Worker::run));
    let count = async {
        let sql = world.server.database.sql().await;
        let settle = "select coalesce(sum(committed + 1), 0)::bigint from queen.log_consumers";
        loop {
            let row = sql.query_one(settle, &[]).await.expect("the cursors");
            let n = usize::try_from(row.get::<_, i64>(0)).expect("a count");
            settled.store(n, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let faults = async {
        loop {
            tokio::time::sleep(Duration::from_millis(random.random_range(5..60))).await;
            match random.random_range(0..8) {
                0 => world.proxy.cut(),
                1 => world.proxy.lose_answer("log_claim_v1"),
                2 => world.proxy.lose_answer("foldmq.state"),
                _ => world.proxy.lose_answer("cycles_v1"),
            }
        }
    };
    tokio::select! {
        _ = work => {}
        () = count => {}
        () = faults => {}
    }
    tell(&format!("answers lost: {}", world.proxy.lost()));
    assert!(world.proxy.lost() > 5, "answers were lost");
    let sql = world.server.database.sql().await;
    let rows = sql.query("select value::text from foldmq.state", &[]).await.expect("the state");
    let whole = (MESSAGES * (MESSAGES + 1) / 2).to_string();
    let sums: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(sums, vec![whole; PARTITIONS.len()], "each message once in the state");
    let mut sink: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let pop = "batch=1000&partitions=8&autoAck=true&subscriptionMode=all&consumerGroup=check";
    while sink.values().map(Vec::len).sum::<usize>() < PARTITIONS.len() * MESSAGES {
        let messages = eventually("the sink is read", async || {
            let path = format!("/api/v1/pop/queue/out?{pop}");
            let answer = client.get(&path).await;
            (answer.status < 500).then_some(answer.body["messages"].clone())
        })
        .await;
        for message in messages.as_array().expect("every message is on the sink") {
            let partition = message["partition"].as_str().expect("text").to_owned();
            let n = message["data"].as_u64().expect("a number");
            sink.entry(partition).or_default().push(usize::try_from(n).expect("small"));
        }
    }
    for (partition, numbers) in &sink {
        assert!(numbers.iter().copied().eq(1..=MESSAGES), "{partition}: {numbers:?}");
    }
    world.stop().await;
}
