//! The data plane over HTTP: the numbered statements of the contract, `data N` in the doc lines.

mod ack;
mod conflation;
mod conventions;
mod dedup;
mod groups;
mod lease;
mod nack;
mod options;
mod order;
mod poll;
mod pop;
mod push;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Client, TestServer, eventually};

/// How soon something must happen that needs no waiting; far below any long poll used here.
const SOON: Duration = Duration::from_secs(4);

/// An item whose payload is its transaction id.
fn item(queue: &str, partition: &str, key: &str) -> Value {
    json!({"queue": queue, "partition": partition, "transactionId": key, "payload": key})
}

/// Pushes items; one result an item.
async fn push(client: &Client, items: &[Value]) -> Vec<Value> {
    let answer = client.post("/api/v1/push", &json!({"items": items})).await.expect(201);
    let results = answer.as_array().expect("a list").clone();
    assert_eq!(results.len(), items.len());
    results
}

/// Pushes one message a key to one partition, all in one request; every one must be queued.
async fn fill(client: &Client, queue: &str, partition: &str, keys: &[&str]) -> Vec<Value> {
    let items: Vec<Value> = keys.iter().map(|key| item(queue, partition, key)).collect();
    let results = push(client, &items).await;
    for result in &results {
        assert_eq!(result["status"], "queued", "{result}");
    }
    results
}

/// One field of every element.
fn all<'a>(list: &'a [Value], field: &str) -> Vec<&'a Value> {
    list.iter().map(|element| &element[field]).collect()
}

/// Transaction ids of messages, or of results of a push or of acks.
fn keys(list: &[Value]) -> Vec<&str> {
    list.iter()
        .map(|e| e.get("transactionId").unwrap_or_else(|| &e["transaction_id"]))
        .map(|id| id.as_str().expect("a text"))
        .collect()
}

/// Pops until something comes.
async fn delivered(client: &Client, queue: &str, query: &str) -> Vec<Value> {
    eventually("messages are delivered", async || {
        let messages = client.pop(queue, query).await;
        (!messages.is_empty()).then_some(messages)
    })
    .await
}

/// An ack of a message, under its lease and for its group.
fn ack_of(message: &Value, status: &str) -> Value {
    json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
           "leaseId": message["leaseId"], "consumerGroup": message["consumerGroup"],
           "status": status})
}

/// Acks one message by the single route; gives the entry.
async fn ack(client: &Client, message: &Value, status: &str) -> Value {
    ack_body(client, &ack_of(message, status)).await
}

/// Acks by the single route with a body of one's own.
async fn ack_body(client: &Client, body: &Value) -> Value {
    let answer = client.post("/api/v1/ack", body).await.expect(200);
    let entries = answer.as_array().expect("a list");
    assert_eq!(entries.len(), 1, "{answer}");
    assert_eq!(entries[0]["index"], 0, "{answer}");
    entries[0].clone()
}

/// Acks several messages of one group in one call.
async fn ack_all(client: &Client, acks: &[Value]) -> Vec<Value> {
    let group = acks.first().map_or(&Value::Null, |ack| &ack["consumerGroup"]);
    let body = json!({"acknowledgments": acks, "consumerGroup": group});
    let answer = client.post("/api/v1/ack/batch", &body).await.expect(200);
    let entries = answer.as_array().expect("a list").clone();
    assert_eq!(entries.len(), acks.len(), "one entry an ack");
    for (i, (entry, ack)) in entries.iter().zip(acks).enumerate() {
        assert_eq!(entry["index"], i, "{entry}");
        assert_eq!(entry["transactionId"], ack["transactionId"], "{entry}");
    }
    entries
}

/// Checks `[success, leaseReleased, dlq, noop]` of an entry that has no error.
#[track_caller]
fn check_entry(entry: &Value, expected: [bool; 4]) {
    let found = [&entry["success"], &entry["leaseReleased"], &entry["dlq"], &entry["noop"]];
    assert_eq!(found, expected.map(Value::from).each_ref(), "{entry}");
    assert_eq!(entry["error"], Value::Null, "{entry}");
}

/// Checks an entry that was refused with a text that holds `word`.
#[track_caller]
fn check_refused(entry: &Value, word: &str) {
    let found = [&entry["success"], &entry["leaseReleased"], &entry["dlq"], &entry["noop"]];
    assert_eq!(found, [&Value::from(false); 4], "{entry}");
    let error = entry["error"].as_str().expect("an error");
    assert!(error.contains(word), "{entry}");
}

async fn configure(client: &Client, queue: &str, options: Value) -> Value {
    let body = json!({"queue": queue, "options": options});
    let answer = client.post("/api/v1/configure", &body).await.expect(200);
    assert_eq!(answer["configured"], true, "{answer}");
    answer
}

/// Waits until `n` pops are parked on a queue (`""` for discovery).
async fn parked(client: &Client, queue: &str, n: usize) {
    let line = format!("queen_parked_long_polls{{queue=\"{queue}\"}} {n}");
    eventually(&line, async || {
        let text = client.get("/metrics/prometheus").await.text;
        text.lines().any(|found| found == line).then_some(())
    })
    .await;
}

/// Runs `call` and checks that it needs no waiting.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    let from = Instant::now();
    let found = call.await;
    assert!(from.elapsed() < SOON, "{:?}", from.elapsed());
    found
}

/// One number that a statement gives.
async fn number(server: &TestServer, sql: &str) -> i64 {
    let row = server.database.sql().await.query_one(sql, &[]).await.expect(sql);
    row.get(0)
}

/// Waits until every lease has ended by the database's clock.
async fn leases_over(server: &TestServer) {
    let live = "select count(*) from queen.log_consumers
                 where lease_expires_at >= clock_timestamp()";
    eventually("the leases end", async || (number(server, live).await == 0).then_some(())).await;
}
