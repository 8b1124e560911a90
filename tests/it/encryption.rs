//! Payloads sealed at rest.

use std::sync::Arc;

use foldmq::log::Seal;
use serde_json::{Value, json};

use crate::support::{Database, TestServer, guest};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const NEXT: &str = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

async fn keyed(database: &Arc<Database>, current: Option<&str>, old: &[&str]) -> TestServer {
    let seal = Seal::new(current, old).expect("keys");
    TestServer::with(Arc::clone(database), |config| config.broker.seal = seal).await
}

async fn encrypt(server: &TestServer, queue: &str, on: bool) {
    let body = json!({"queue": queue, "options": {"encryptionEnabled": on}});
    server.client().post("/api/v1/configure", &body).await.expect(200);
}

/// The payloads of a queue as they are stored.
async fn stored(server: &TestServer, queue: &str) -> Vec<String> {
    let sql = server.database.sql().await;
    let rows = sql
        .query(
            "select s.payload, s.n from queen.log_segments s
               join queen.log_partitions p using (pid) join queen.queues q using (queue_no)
              where q.name = $1 order by s.pid, s.first_offset",
            &[&queue],
        )
        .await
        .expect("the segments");
    rows.iter()
        .flat_map(|row| foldmq::log::segment::decode(row.get(0), row.get(1)).expect("a segment"))
        .map(|frame| frame.payload)
        .collect()
}

async fn all(server: &TestServer, queue: &str, group: &str) -> Vec<Value> {
    let query =
        format!("batch=100&partitions=8&autoAck=true&subscriptionMode=all&consumerGroup={group}");
    let messages = server.client().pop(queue, &query).await;
    messages.iter().map(|message| message["data"].clone()).collect()
}

/// data 32, data 129
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_an_encrypted_queue_pop_as_plaintext() {
    let database = Arc::new(Database::new().await);
    let server = keyed(&database, Some(KEY), &[]).await;
    let client = server.client();
    encrypt(&server, "q", true).await;
    let item = json!({"queue": "q", "payload": {"card": "4111"}, "transactionId": "t"});
    let push = json!({"items": [item.clone(), item]});
    let answer = client.post("/api/v1/push", &push).await.expect(201);
    assert_eq!(
        (&answer[0]["status"], &answer[1]["status"]),
        (&json!("queued"), &json!("duplicate"))
    );
    let again = client.post("/api/v1/push", &push).await.expect(201);
    assert_eq!(again[0]["status"], "duplicate", "dedup works as on a plain queue");
    let at_rest = stored(&server, "q").await;
    assert_eq!(at_rest.len(), 1);
    assert!(at_rest[0].contains("authTag") && !at_rest[0].contains("4111"), "{at_rest:?}");
    // The flag decides for new messages only.
    encrypt(&server, "q", false).await;
    client.push("q", "Default", &[json!("plain")]).await;
    assert_eq!(stored(&server, "q").await[1], "\"plain\"");
    assert_eq!(all(&server, "q", "a").await, [json!({"card": "4111"}), json!("plain")]);
    server.stop().await;

    // A rotated key opens what the old one sealed; without any key the push still succeeds.
    let server = keyed(&database, Some(NEXT), &[KEY]).await;
    assert_eq!(all(&server, "q", "b").await, [json!({"card": "4111"}), json!("plain")]);
    server.stop().await;
    let server = keyed(&database, None, &[]).await;
    encrypt(&server, "bare", true).await;
    server.client().push("bare", "p", &[json!({"n": 1})]).await;
    assert_eq!(stored(&server, "bare").await, [r#"{"n":1}"#]);
    assert_eq!(all(&server, "bare", "a").await, [json!({"n": 1})]);
    server.stop().await;
}

/// streams B1, streams B3, streams B4: sink payloads are sealed like pushed ones, by the flag of
/// the request's own queue; a queue that the cycle makes is plain. Folds read plaintext.
#[tokio::test(flavor = "multi_thread")]
async fn sinks_of_cycles_and_folds_are_sealed() {
    let database = Arc::new(Database::new().await);
    let server = keyed(&database, Some(KEY), &[]).await;
    let client = server.client();
    encrypt(&server, "sealed", true).await;
    encrypt(&server, "probe.out", true).await;
    encrypt(&server, "in", true).await;
    client
        .push("in", "p", &[json!({"key": "k", "n": 7, "at": 1}), json!({"key": "k", "at": 9000})])
        .await;
    let query = client.register("w", "in").await;
    let popped = client.pop("in", "consumerGroup=streams.w&subscriptionMode=all").await;
    let cycle = json!({"query_id": query, "partition_id": popped[0]["partitionId"],
        "push_items": [{"queue": "sealed", "payload": {"secret": 1}},
                       {"queue": "made.by.cycle", "payload": {"open": 1}}]});
    assert_eq!(client.cycle(&cycle).await["success"], true);
    assert!(stored(&server, "sealed").await[0].contains("authTag"));
    assert_eq!(stored(&server, "made.by.cycle").await, [r#"{"open":1}"#]);
    assert_eq!(all(&server, "sealed", "a").await, [json!({"secret": 1})]);
    let params = json!({"params": {"window_ms": 1000, "event_time": true}});
    guest::host_probe(&client, "f", "in", params).await;
    let window = crate::support::eventually("the window closes", async || {
        all(&server, "probe.out", "a").await.pop()
    })
    .await;
    assert_eq!((&window["sum"], &window["count"]), (&json!(7), &json!(1)));
    assert!(stored(&server, "probe.out").await[0].contains("authTag"));
    server.stop().await;
}
