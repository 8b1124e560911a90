//! PostgreSQL is away for a while, and comes back.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::World;
use crate::support::{Client, eventually, guest, tell};

const OUTAGE: Duration = Duration::from_secs(4);
/// How soon everything works once the database is back.
const RECOVERY: Duration = Duration::from_secs(5);

/// A long poll, asked again for as long as the store fails, as a client does it.
async fn poll(client: &Client, queue: &str) -> Vec<Value> {
    let path = format!(
        "/api/v1/pop/queue/{queue}?wait=true&timeout=30000&consumerGroup=t&subscriptionMode=all\
         &autoAck=true&batch=100"
    );
    eventually("a long poll is answered", async || {
        let answer = client.try_send(client.request(Method::GET, &path)).await.expect("an answer");
        if answer.status >= 500 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            return None;
        }
        Some(answer.expect(200)["messages"].as_array().expect("messages").clone())
    })
    .await
}

/// FB-92, FB-93: after an outage pushes, pops, long polls, hosted folds and deadlines go on by
/// themselves; a window that was due meanwhile reaches a pop that waits on its sink.
#[tokio::test(flavor = "multi_thread")]
async fn everything_resumes_after_an_outage() {
    let world = World::start().await;
    let client = &world.client;
    guest::host_probe(client, "clock", "in", json!({"params": {"window_ms": 2_000}})).await;
    client.push("in", "p", &[json!({"key": "before", "n": 1})]).await;
    eventually("the window is open", async || {
        let status = client.status("clock").await;
        (status["messages"] == 1 && status["lag_messages"] == 0).then_some(())
    })
    .await;
    let windows = poll(client, "probe.out");
    let plain = poll(client, "plain");
    let outage = async {
        world.proxy.close(true);
        tokio::time::sleep(OUTAGE).await;
        let health = client.get("/health").await;
        assert_eq!(health.status, 503, "{}", health.text);
        let refused = client
            .post("/api/v1/push", &json!({"items": [{"queue": "plain", "payload": 0}]}))
            .await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        world.proxy.close(false);
        let back = Instant::now();
        eventually("pushes are taken", async || {
            let item = json!({"queue": "plain", "payload": 1, "transactionId": "one"});
            let answer = client.post("/api/v1/push", &json!({"items": [item]})).await;
            (answer.status == 201 && answer.body[0]["status"] != "failed").then_some(())
        })
        .await;
        tell(&format!("pushes after {:?}", back.elapsed()));
        back
    };
    let (windows, plain, back) = tokio::join!(windows, plain, outage);
    tell(&format!("polls after {:?}", back.elapsed()));
    assert_eq!(plain.len(), 1, "{plain:?}");
    assert_eq!(windows.len(), 1, "{windows:?}");
    assert_eq!(windows[0]["data"]["key"], "before");

    client.push("in", "p", &[json!({"key": "after", "n": 1})]).await;
    eventually("the fold goes on", async || {
        (client.status("clock").await["messages"] == 2).then_some(())
    })
    .await;
    tell(&format!("folds after {:?}", back.elapsed()));
    assert!(back.elapsed() < RECOVERY, "{:?}", back.elapsed());
    let next = poll(client, "probe.out").await;
    assert_eq!(next[0]["data"]["key"], "after", "{next:?}");
    let metrics = client.get("/metrics/prometheus").await.text;
    assert!(metrics.contains("foldmq_listening 1"), "hints are heard again");
    assert_eq!(client.get("/health").await.status, 200);
    world.stop().await;
}
