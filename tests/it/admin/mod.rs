//! The control plane over HTTP: the numbered statements of the contract, `control N` in the doc
//! lines.

mod dlq;
mod groups;
mod messages;
mod replay;
mod resources;
mod seek;
mod status;
mod tenants;
mod traces;

use serde_json::{Value, json};

use crate::support::{Client, TestServer};

/// Pushes one message a key to one partition; payload and transaction id are the key.
async fn fill(client: &Client, queue: &str, partition: &str, keys: &[&str]) -> Vec<Value> {
    let items: Vec<Value> = keys
        .iter()
        .map(|key| {
            json!({"queue": queue, "partition": partition, "transactionId": key, "payload": key})
        })
        .collect();
    let answer = client.post("/api/v1/push", &json!({"items": items})).await.expect(201);
    let results = answer.as_array().expect("a list").clone();
    assert!(results.iter().all(|r| r["status"] == "queued"), "{answer}");
    results
}

/// Pops from the beginning as a group; `queue` may name a partition, as in `q/partition/p`.
async fn pop_all(client: &Client, queue: &str, group: &str) -> Vec<Value> {
    let query = format!("batch=1000&partitions=50&subscriptionMode=all&consumerGroup={group}");
    client.pop(queue, &query).await
}

/// Acks a message under its lease; it must be carried out.
async fn ack(client: &Client, message: &Value, status: &str, error: Option<&str>) -> Value {
    let body = json!({
        "transactionId": message["transactionId"], "partitionId": message["partitionId"],
        "leaseId": message["leaseId"], "consumerGroup": message["consumerGroup"],
        "status": status, "error": error,
    });
    let answer = client.post("/api/v1/ack", &body).await.expect(200);
    answer[0].clone()
}

/// Acks all messages up to and with the last one of each partition.
async fn settle(client: &Client, messages: &[Value]) {
    for message in messages {
        assert_eq!(ack(client, message, "completed", None).await["success"], true, "{message}");
    }
}

/// Dead-letters the first message that a group finds, with a reason.
async fn kill(client: &Client, queue: &str, group: &str, reason: &str) -> Value {
    let held = pop_all(client, queue, group).await;
    let entry = ack(client, &held[0], "dlq", Some(reason)).await;
    assert_eq!((&entry["success"], &entry["dlq"]), (&json!(true), &json!(true)), "{entry}");
    held[0].clone()
}

/// One field of every element.
fn all<'a>(list: &'a Value, field: &str) -> Vec<&'a Value> {
    list.as_array().expect("a list").iter().map(|element| &element[field]).collect()
}

/// Payloads, sorted.
fn data(messages: &[Value]) -> Vec<&str> {
    let mut data: Vec<&str> = messages.iter().map(|m| m["data"].as_str().expect("text")).collect();
    data.sort_unstable();
    data
}

/// The address of a message in a path.
fn address(message: &Value) -> String {
    let part = |field: &str| message[field].as_str().expect("text").to_owned();
    format!("/api/v1/messages/{}/{}", part("partitionId"), part("transactionId"))
}

/// Runs a statement of the test's own.
async fn execute(server: &TestServer, sql: &str) {
    server.database.sql().await.batch_execute(sql).await.expect(sql);
}
