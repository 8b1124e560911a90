//! Maintenance modes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Client, Database, TestServer, eventually};

const PUSH: &str = "/api/v1/system/maintenance";
const POP: &str = "/api/v1/system/maintenance/pop";

async fn switch(client: &Client, path: &str, on: bool) -> Value {
    client.post(path, &json!({"enabled": on})).await.expect(200)
}

async fn push(client: &Client, ids: &[&str]) -> Value {
    let items: Vec<Value> = ids
        .iter()
        .map(|id| json!({"queue": "q", "partition": "p", "payload": id, "transactionId": id}))
        .collect();
    client.post("/api/v1/push", &json!({"items": items})).await.expect(201)
}

/// data 20, data 21: pushes during maintenance are buffered, not poppable, and appear exactly once
/// afterwards; what came before, meanwhile and after is whole together.
#[tokio::test(flavor = "multi_thread")]
async fn buffered_pushes_appear_once_afterwards() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::on(Arc::clone(&database)).await;
    let other = TestServer::on(database).await;
    let client = server.client();
    push(&client, &["before"]).await;
    let on = switch(&client, PUSH, true).await;
    assert_eq!(on["maintenanceMode"], true, "{on}");
    assert!(on["message"].as_str().expect("text").contains("ENABLED"));
    let buffered = push(&client, &["a", "b", "before", "a"]).await;
    for item in buffered.as_array().expect("a list") {
        assert_eq!(item["status"], "buffered", "{item}");
        assert!(item.get("offset").is_none());
    }
    let shown = client.get(PUSH).await.expect(200);
    assert_eq!(shown["bufferedMessages"], 4, "{shown}");
    let all = "batch=100&autoAck=true&subscriptionMode=all&consumerGroup=g";
    assert_eq!(client.pop("q", all).await.len(), 1, "only what came before");
    // The switch is known everywhere, and survives.
    eventually("the other broker knows", async || {
        let shown = other.client().get(PUSH).await.expect(200);
        (shown["maintenanceMode"] == true).then_some(())
    })
    .await;
    switch(&other.client(), PUSH, false).await;
    eventually("the first broker knows", async || {
        let shown = client.get(PUSH).await.expect(200);
        (shown["maintenanceMode"] == false).then_some(())
    })
    .await;
    push(&client, &["after"]).await;
    let mut seen = Vec::new();
    eventually("everything comes", async || {
        seen.extend(client.pop("q", all).await);
        (seen.len() >= 3).then_some(())
    })
    .await;
    let ids: BTreeSet<_> =
        seen.iter().map(|m| m["transactionId"].as_str().expect("text")).collect();
    assert_eq!(ids, BTreeSet::from(["a", "after", "b"]));
    assert_eq!(seen.len(), 3, "each once: {seen:?}");
    let of_a = seen.iter().find(|m| m["transactionId"] == "a").expect("a");
    assert_eq!(of_a["id"], buffered[0]["message_id"]);
    let shown = client.get(PUSH).await.expect(200);
    assert_eq!(shown["bufferedMessages"], 0, "{shown}");
    server.stop().await;
    other.stop().await;
}

/// Pop maintenance answers every pop empty; pushes and acks keep working.
#[tokio::test(flavor = "multi_thread")]
async fn pops_pause_and_come_back() {
    let server = TestServer::start().await;
    let client = server.client();
    push(&client, &["x"]).await;
    let leased = client.pop("q", "subscriptionMode=all&consumerGroup=g").await.remove(0);
    let on = switch(&client, POP, true).await;
    assert_eq!(on["popMaintenanceMode"], true, "{on}");
    push(&client, &["y"]).await;
    let path = "/api/v1/pop/queue/q?subscriptionMode=all&consumerGroup=h";
    assert_eq!(client.get(path).await.status, 204);
    let paused = client.get(&format!("{path}&conflation=true")).await.expect(200);
    assert_eq!(paused, json!({"messages": [], "paused": true, "conflation": true}));
    let ack = json!({"transactionId": "x", "partitionId": leased["partitionId"],
                     "leaseId": leased["leaseId"], "consumerGroup": "g"});
    assert_eq!(client.post("/api/v1/ack", &ack).await.expect(200)[0]["success"], true);
    let bad = client.post(POP, &json!({"enabled": "yes"})).await;
    assert_eq!((bad.status, &bad.body["error"]), (400, &json!("enabled (boolean) is required")));
    switch(&client, POP, false).await;
    assert_eq!(client.pop("q", "batch=5&subscriptionMode=all&consumerGroup=h").await.len(), 2);
    server.stop().await;
}
