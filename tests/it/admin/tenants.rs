//! Tenants on the control plane, and sealed payloads there.

use std::sync::Arc;

use foldmq::log::Seal;
use serde_json::{Value, json};

use super::{address, all, data, fill, kill, pop_all};
use crate::support::{Client, Database, TestServer};

const A: &str = "0193f0c4-1a2b-7c3d-8e4f-00000000000a";
const B: &str = "0193f0c4-1a2b-7c3d-8e4f-00000000000b";
const KEY: &str = "00000000000000000000000000000000000000000000000000000000000000ff";

/// control 97, control 98: equal names are apart, and ids of another tenant are unknown ones.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_see_their_own_alone() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| config.tenancy = true).await;
    let client = server.client();
    let (a, b) = (client.for_tenant(A), client.for_tenant(B));
    fill(&a, "q", "p", &["1", "2"]).await;
    fill(&b, "q", "p", &["3", "4", "5"]).await;
    let (dead_a, dead_b) = (kill(&a, "q", "g", "a").await, kill(&b, "q", "g", "b").await);
    let trace = json!({"transactionId": "1", "partitionId": dead_a["partitionId"], "data": 1,
                       "traceNames": "n"});
    a.post("/api/v1/traces", &trace).await.expect(201);

    let count = async |client: &Client, path: &str, field: &str| {
        let found = client.get(path).await.expect(200);
        found.pointer(field).unwrap_or_else(|| panic!("{field}: {found}")).clone()
    };
    for (path, field, of_a, of_b) in [
        ("/api/v1/resources/overview", "/messages/total", json!(2), json!(3)),
        ("/api/v1/resources/queues", "/queues/0/messages/total", json!(2), json!(3)),
        ("/api/v1/resources/queues/q", "/totals/total", json!(2), json!(3)),
        ("/api/v1/resources/queues/q/depth?group=g", "/pending", json!(1), json!(2)),
        ("/api/v1/resources/namespaces", "/namespaces/0/messages/total", json!(2), json!(3)),
        ("/api/v1/status/queues", "/queues/0/messages/total", json!(2), json!(3)),
        ("/api/v1/status", "/messages/total", json!(2), json!(3)),
        ("/api/v1/messages", "/total", json!(2), json!(3)),
        ("/api/v1/dlq", "/messages/0/data", json!("1"), json!("3")),
        ("/api/v1/consumer-groups", "/0/totalLag", json!(1), json!(2)),
        ("/api/v1/consumer-groups/g", "/q/partitions/0/offsetLag", json!(1), json!(2)),
        ("/api/v1/traces/names", "/total", json!(1), json!(0)),
        ("/api/v1/traces/by-name/n", "/total", json!(1), json!(0)),
    ] {
        assert_eq!(count(&a, path, field).await, of_a, "{path}");
        assert_eq!(count(&b, path, field).await, of_b, "{path}");
    }
    let path = address(&dead_a);
    let record = a.get("/api/v1/dlq").await.expect(200)["messages"][0]["id"].clone();
    let replay = format!("/api/v1/dlq/{}/replay", record.as_str().expect("text"));
    b.get(&path).await.expect(404);
    b.delete(&path).await.expect(404);
    b.post(&format!("{path}/retry"), &json!({})).await.expect(404);
    assert_eq!(b.post(&replay, &json!({})).await.expect(404)["result"], "gone");
    b.post("/api/v1/traces", &trace).await.expect(404);
    let traces = b.get(&path.replace("/messages/", "/traces/")).await.expect(200);
    assert_eq!(traces, json!({"traces": []}));

    let gone = b.delete("/api/v1/consumer-groups/g").await.expect(200);
    assert_eq!(gone["deletedPartitions"], 1);
    let subscription = json!({"subscriptionTimestamp": "1970-01-01T00:00:00Z"});
    let moved = b.post("/api/v1/consumer-groups/g/subscription", &subscription).await.expect(200);
    assert_eq!(moved["rowsUpdated"], 0);
    assert_eq!(b.delete("/api/v1/dlq?queue=q").await.expect(200)["deleted"], 1);
    assert_eq!(count(&a, "/api/v1/dlq", "/total").await, 1);
    assert_eq!(data(&pop_all(&a, "q", "g").await), ["2"], "the group stands where it was");
    b.get(&address(&dead_b)).await.expect(200);
    assert_eq!(a.post(&replay, &json!({})).await.expect(200)["result"], "moved");
    server.stop().await;
}

/// control 100: every read path opens what is sealed at rest; a replay seals by its destination.
#[tokio::test(flavor = "multi_thread")]
async fn sealed_payloads_are_shown_open() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| {
        config.broker.seal = Seal::new(Some(KEY), &[]).expect("a key");
    })
    .await;
    let client = server.client();
    let body = json!({"queue": "sealed", "options": {"encryptionEnabled": true}});
    client.post("/api/v1/configure", &body).await.expect(200);
    fill(&client, "sealed", "p", &["1", "2"]).await;
    let dead = kill(&client, "sealed", "g", "bad").await;
    let sql = server.database.sql().await;
    let stored = async || {
        let dead = "select convert_from(payload, 'utf8') from queen.log_dead_letters";
        let row = sql.query_one(dead, &[]).await.expect("one record");
        row.get::<_, String>(0)
    };
    assert!(stored().await.contains("authTag"));
    let records = client.get("/api/v1/dlq").await.expect(200);
    assert_eq!(records["messages"][0]["data"], "1");
    let listed = client.get("/api/v1/messages").await.expect(200);
    assert_eq!(all(&listed["messages"], "data"), ["2", "1"]);
    assert_eq!(all(&listed["messages"], "isEncrypted"), [&json!(true); 2]);
    let shown = client.get(&address(&dead)).await.expect(200);
    assert_eq!((&shown["data"], &shown["isEncrypted"]), (&json!("1"), &json!(true)));

    let replay =
        format!("/api/v1/dlq/{}/replay", records["messages"][0]["id"].as_str().expect("text"));
    client.post(&replay, &json!({"queue": "plain"})).await.expect(200);
    let listed = client.get("/api/v1/messages?queue=plain").await.expect(200);
    let row: &Value = &listed["messages"][0];
    assert_eq!((&row["data"], &row["isEncrypted"]), (&json!("1"), &json!(false)));
    let held = kill(&client, "plain", "g", "bad").await;
    assert!(!stored().await.contains("authTag"));
    let records = client.get("/api/v1/dlq").await.expect(200);
    let replay =
        format!("/api/v1/dlq/{}/replay", records["messages"][0]["id"].as_str().expect("text"));
    client.post(&replay, &json!({"queue": "sealed"})).await.expect(200);
    assert_eq!(held["data"], "1");
    let listed = client.get("/api/v1/messages?queue=sealed&limit=1").await.expect(200);
    let row: &Value = &listed["messages"][0];
    assert_eq!((&row["data"], &row["isEncrypted"]), (&json!("1"), &json!(true)));
    server.stop().await;
}
