//! One call whose answer is lost, after it took effect.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::World;
use crate::support::{eventually, guest};

/// Far below every lease used here.
const SOON: Duration = Duration::from_secs(5);

impl World {
    /// Waits until the armed answer was lost.
    async fn lost(&self, n: usize) {
        eventually("an answer is lost", async || (self.proxy.lost() == n).then_some(())).await;
    }
}

/// FB-90: a claim whose answer never came is given back at once, not after its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_an_answer_is_given_back() {
    let world = World::start().await;
    let client = &world.client;
    client.push("q", "p", &[json!(1), json!(2)]).await;
    let pop = "batch=10&leaseSeconds=600&consumerGroup=g&subscriptionMode=all";
    let one = "consumerGroup=g&subscriptionMode=all&batch=1&autoAck=true";
    assert_eq!(client.pop("q", one).await.len(), 1, "the group is known");
    world.proxy.lose_answer("log_claim_v1");
    let path = format!("/api/v1/pop/queue/q?{pop}");
    let answer = client.get(&path).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    world.lost(1).await;
    let asked = Instant::now();
    let answer = client.get(&format!("{path}&wait=true&timeout=30000")).await.expect(200);
    assert_eq!(answer["messages"].as_array().expect("messages").len(), 1, "{answer}");
    assert!(asked.elapsed() < SOON, "after {:?}", asked.elapsed());
    world.stop().await;
}

/// A push, an ack and a transaction are repeated after lost answers: each took effect once.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_takes_effect_once() {
    let world = World::start().await;
    let client = &world.client;
    let item = |queue: &str, id: &str| json!({"queue": queue, "partition": "p", "transactionId": id, "payload": id});
    client.post("/api/v1/push", &json!({"items": [item("q", "a")]})).await.expect(201);
    let body = json!({"items": [item("q", "a"), item("q", "b"), item("q", "c")]});
    world.proxy.lose_answer("log_push_many_v1");
    let refused = client.post("/api/v1/push", &body).await;
    assert!(refused.status >= 500 || refused.body[0]["status"] == "failed", "{}", refused.text);
    let again = client.post("/api/v1/push", &body).await.expect(201);
    let statuses: Vec<_> =
        again.as_array().expect("a list").iter().map(|r| r["status"].clone()).collect();
    assert_eq!(statuses, ["duplicate", "duplicate", "duplicate"], "{again}");

    let pop = "batch=2&leaseSeconds=600&consumerGroup=g&subscriptionMode=all";
    let messages = client.pop("q", pop).await;
    assert_eq!(messages.len(), 2);
    let ack = |message: &Value, lease: &Value| {
        json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
               "consumerGroup": "g", "leaseId": lease, "status": "completed"})
    };
    world.proxy.lose_answer("log_settle_v1");
    let path = "/api/v1/ack";
    let refused = client.post(path, &ack(&messages[1], &messages[1]["leaseId"])).await.expect(200);
    assert_eq!(refused[0]["success"], false, "{refused}");
    let again = client.post(path, &ack(&messages[1], &Value::Null)).await.expect(200);
    let noop = (&again[0]["success"], &again[0]["noop"]);
    assert_eq!(noop, (&json!(true), &json!(true)), "{again}");

    let messages = client.pop("q", pop).await;
    assert_eq!(messages.len(), 1, "only what was not acked");
    let mut op = ack(&messages[0], &messages[0]["leaseId"]);
    op["type"] = json!("ack");
    let mut push = item("out", "x");
    push["type"] = json!("push");
    let body = json!({"operations": [op, push]});
    world.proxy.lose_answer("COMMIT");
    let refused = client.post("/api/v1/transaction", &body).await.expect(200);
    assert_eq!(refused["reason"], "db_error", "{refused}");
    let again = client.post("/api/v1/transaction", &body).await.expect(200);
    assert_eq!(again["success"], false, "its lease has ended with it: {again}");
    world.lost(3).await;
    assert_eq!(client.pop("q", pop).await.len(), 0);
    let out = client.pop("out", "batch=10&consumerGroup=g&subscriptionMode=all").await;
    assert_eq!(out.len(), 1, "{out:?}");
    world.stop().await;
}

/// FB-32: a hosted cycle and a flush whose commits lose their answers count once, and the lease
/// of the next batch, claimed in the same call, does not hold the partition up.
#[tokio::test(flavor = "multi_thread")]
async fn a_hosted_cycle_without_an_answer_counts_once() {
    let world = World::start().await;
    let client = &world.client;
    let params = json!({"params": {"window_ms": 60_000, "event_time": true, "idle_ms": 400}});
    guest::host_probe(client, "sums", "q", params).await;
    let message = |n: i64| json!({"key": "k", "n": n, "at": 1_000});
    client.push("q", "p", &[message(1)]).await;
    let mut lost = 0;
    for n in 0..4 {
        lost += 1;
        world.proxy.lose_answer("cycles_v1");
        client.push("q", "p", &[message(10), message(20)]).await;
        world.lost(lost).await;
        let asked = Instant::now();
        eventually("everything is folded", async || {
            let status = client.status("sums").await;
            (status["messages"] == 1 + 2 * (n + 1)).then_some(())
        })
        .await;
        assert!(asked.elapsed() < SOON, "after {:?}", asked.elapsed());
    }
    world.proxy.lose_answer("cycles_v1");
    world.lost(lost + 1).await;
    let windows = eventually("the window closes", async || {
        let query = "batch=10&autoAck=true&consumerGroup=t&subscriptionMode=all";
        Some(client.pop("probe.out", query).await).filter(|windows| !windows.is_empty())
    })
    .await;
    assert_eq!(windows.len(), 1, "{windows:?}");
    assert_eq!(windows[0]["data"]["sum"], 121, "{windows:?}");
    assert_eq!(windows[0]["data"]["count"], 9, "{windows:?}");
    world.stop().await;
}
