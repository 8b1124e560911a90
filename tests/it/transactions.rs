//! Transactions: pushes and acks that commit together.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually};

const ROUTE: &str = "/api/v1/transaction";

async fn claimed(client: &Client, queue: &str, more: &str) -> Vec<Value> {
    let query = format!("batch=10&partitions=8&subscriptionMode=all&{more}");
    client.pop(queue, &query).await
}

fn ack(message: &Value, status: &str) -> Value {
    json!({"type": "ack", "transactionId": message["transactionId"],
           "partitionId": message["partitionId"], "status": status,
           "leaseId": message["leaseId"], "consumerGroup": message["consumerGroup"]})
}

fn push(queue: &str, id: &str) -> Value {
    json!({"type": "push", "queue": queue, "payload": {"id": id}, "transactionId": id})
}

async fn transact(client: &Client, operations: &[Value]) -> Value {
    client.post(ROUTE, &json!({"operations": operations})).await.expect(200)
}

/// data 34, data 132, data 135, data 137, data 138, data 144
#[tokio::test(flavor = "multi_thread")]
async fn acks_and_pushes_commit_together() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("in", "p", &[json!(1), json!(2)]).await;
    let other = claimed(&client, "in", "consumerGroup=other").await;
    let mine = claimed(&client, "in", "consumerGroup=g").await;
    let done = transact(
        &client,
        &[ack(&mine[1], "completed"), push("out.a", "x"), push("out.b", "x"), push("out.a", "y")],
    )
    .await;
    assert_eq!(done["success"], true, "{done}");
    let results = done["results"].as_array().expect("a list");
    let kinds: Vec<_> = results.iter().map(|r| r["type"].as_str().expect("text")).collect();
    assert_eq!(kinds, ["ack", "push", "push", "push"], "{done}");
    assert_eq!(results[0]["dlq"], false);
    assert_eq!(results[1]["queueName"], "out.a");
    assert_eq!(results[3]["index"], 3);
    assert!(results[1].get("duplicate").is_none(), "absent, not false: {done}");
    assert_eq!(client.pop("in", "consumerGroup=g").await.len(), 0, "all settled");
    let popped = claimed(&client, "out.a", "consumerGroup=g").await;
    assert_eq!(popped.len(), 2);
    assert_eq!(popped[0]["id"], results[1]["messageId"]);
    assert_eq!(claimed(&client, "out.b", "consumerGroup=g").await.len(), 1);
    // The other group's lease and cursor are untouched.
    let settled = transact(&client, &[ack(&other[1], "completed")]).await;
    assert_eq!(settled["success"], true, "ack-only: {settled}");
    // A key that came through a transaction is a duplicate for a plain push.
    let item = json!({"queue": "out.a", "payload": 0, "transactionId": "x"});
    let again = client.post("/api/v1/push", &json!({"items": [item]})).await.expect(201);
    assert_eq!(again[0]["status"], "duplicate", "{again}");
    assert_eq!(again[0]["message_id"], results[1]["messageId"]);
    server.stop().await;
}

/// data 133, data 140, data 141
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_step_rolls_everything_back() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("in", "p", &[json!(1), json!(2)]).await;
    let mine = claimed(&client, "in", "consumerGroup=g&leaseSeconds=1").await;
    let mut unknown = ack(&mine[0], "completed");
    unknown["transactionId"] = json!("never pushed");
    let mut nowhere = ack(&mine[0], "completed");
    nowhere["partitionId"] = json!("01994c11-0c22-7d90-9f31-5b7a6c8d9e0f");
    for bad in [unknown, nowhere] {
        let refused = transact(&client, &[push("out", "x"), bad]).await;
        assert_eq!(refused["success"], false, "{refused}");
        assert_eq!(refused["reason"], "ack_rejected", "{refused}");
        assert!(refused["error"].as_str().expect("text").starts_with("QTXN"), "{refused}");
        assert_eq!(refused["results"], json!([]));
    }
    let nameless = transact(&client, &[push("out", "x"), push("", "y")]).await;
    assert_eq!((&nameless["success"], &nameless["reason"]), (&json!(false), &json!("bad_request")));
    assert_eq!(claimed(&client, "out", "consumerGroup=g").await.len(), 0);

    let first = transact(&client, &[push("dup", "k"), push("dup", "k")]).await;
    assert_eq!(first["success"], true, "{first}");
    assert_eq!(first["results"][1]["duplicate"], true, "{first}");
    assert_eq!(first["results"][0]["messageId"], first["results"][1]["messageId"]);
    let stored = transact(&client, &[push("dup", "new"), push("dup", "k")]).await;
    assert_eq!((&stored["success"], &stored["reason"]), (&json!(false), &json!("duplicate")));
    assert!(stored["error"].as_str().expect("text").starts_with("QDUP"), "{stored}");
    assert_eq!(claimed(&client, "dup", "consumerGroup=g").await.len(), 1);
    server.stop().await;
}

/// data 134
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_rolls_everything_back() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("in", "p", &[json!(1)]).await;
    let mine = claimed(&client, "in", "consumerGroup=g&leaseSeconds=1").await;
    eventually("somebody else holds the message", async || {
        let theirs = claimed(&client, "in", "consumerGroup=g&leaseSeconds=60").await;
        (theirs.len() == 1).then_some(())
    })
    .await;
    let late = transact(&client, &[push("out", "x"), ack(&mine[0], "completed")]).await;
    assert_eq!(late["reason"], "ack_rejected", "{late}");
    assert!(late["error"].as_str().expect("text").contains("lease"), "{late}");
    assert_eq!(client.pop("out", "subscriptionMode=all").await.len(), 0);
    server.stop().await;
}

/// data 136, data 145
#[tokio::test(flavor = "multi_thread")]
async fn several_leases_commit_in_one_transaction() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("a", "p", &[json!(1)]).await;
    client.push("a", "r", &[json!(1)]).await;
    client.push("b", "p", &[json!(1)]).await;
    let a = claimed(&client, "a", "consumerGroup=g").await;
    let b = claimed(&client, "b", "consumerGroup=g").await;
    assert_eq!((a.len(), b.len()), (2, 1));
    let all = [ack(&a[0], "completed"), ack(&a[1], "completed"), ack(&b[0], "completed")];
    assert_eq!(transact(&client, &all).await["success"], true);
    // Leases only in requiredLeases, as one official SDK sends them.
    client.push("a", "p", &[json!(2)]).await;
    let again = claimed(&client, "a", "consumerGroup=g").await;
    let mut bare = ack(&again[0], "completed");
    bare.as_object_mut().expect("an object").remove("leaseId");
    let body = json!({"operations": [bare], "requiredLeases": [again[0]["leaseId"]]});
    assert_eq!(client.post(ROUTE, &body).await.expect(200)["success"], true);
    // No lease named at all: nothing is checked.
    client.push("a", "p", &[json!(3)]).await;
    let third = claimed(&client, "a", "consumerGroup=g").await;
    let mut bare = ack(&third[0], "completed");
    bare.as_object_mut().expect("an object").remove("leaseId");
    assert_eq!(transact(&client, &[bare]).await["success"], true);
    assert_eq!(client.pop("a", "consumerGroup=g").await.len(), 0);
    server.stop().await;
}

/// data 139
#[tokio::test(flavor = "multi_thread")]
async fn nacks_act_as_on_the_ack_route() {
    let server = TestServer::start().await;
    let client = server.client();
    let options = json!({"retryLimit": 1});
    client.post("/api/v1/configure", &json!({"queue": "in", "options": options})).await.expect(200);
    client.push("in", "p", &[json!(1), json!(2)]).await;
    for round in 0..3 {
        let mine = claimed(&client, "in", "consumerGroup=g").await;
        let status = if round == 0 { "retry" } else { "failed" };
        let mut nack = ack(&mine[0], status);
        nack["error"] = json!("smtp 550");
        let done = transact(&client, &[nack]).await;
        assert_eq!(done["results"][0]["dlq"], json!(round == 2), "{done}");
    }
    let mine = claimed(&client, "in", "consumerGroup=g").await;
    let done = transact(&client, &[ack(&mine[0], "dlq")]).await;
    assert_eq!(done["results"][0]["dlq"], true, "{done}");
    let sql = server.database.sql().await;
    let query = "select first_offset, error_message from queen.log_dead_letters order by 1";
    let rows = sql.query(query, &[]).await.expect("dead letters");
    let found: Vec<(i64, String)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
    assert_eq!(found, [(0, "smtp 550".to_owned()), (1, "no reason given".to_owned())]);
    server.stop().await;
}

/// data 142, data 143
#[tokio::test(flavor = "multi_thread")]
async fn shapes_are_checked_before_any_work() {
    let server = TestServer::start().await;
    let client = server.client();
    let trace = "01994c10-6a01-7b1e-8c44-0d1f5a77c901";
    let mut traced = push("t", "a");
    traced["traceId"] = json!(trace);
    let mut untraced = push("t", "b");
    untraced["traceId"] = json!("no uuid");
    assert_eq!(transact(&client, &[traced, untraced]).await["success"], true);
    let popped = claimed(&client, "t", "").await;
    assert_eq!((&popped[0]["traceId"], &popped[1]["traceId"]), (&json!(trace), &json!(null)));
    let bad = client.post(ROUTE, &json!({"operations": [push("t", "c"), {"type": "pull"}]})).await;
    assert_eq!(bad.status, 400, "{}", bad.text);
    assert_eq!(bad.body["reason"], "bad_request");
    assert_eq!(client.post(ROUTE, &json!({})).await.status, 400);
    assert_eq!(claimed(&client, "t", "consumerGroup=fresh").await.len(), 2, "nothing was written");
    server.stop().await;
}
