//! Tenants that share a broker do not meet.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Client, Database, TestServer, guest};

const A: &str = "0193f0c4-1a2b-7c3d-8e4f-00000000000a";
const B: &str = "0193f0c4-1a2b-7c3d-8e4f-00000000000b";
const QUERIES: &str = "/streams/v1/queries";

async fn shared() -> (TestServer, Client, Client) {
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| config.tenancy = true).await;
    let client = server.client();
    let (a, b) = (client.for_tenant(A), client.for_tenant(B));
    (server, a, b)
}

async fn grant(server: &TestServer, tenant: &str, enabled: bool, cap: Option<i32>) {
    let tenant: uuid::Uuid = tenant.parse().expect("a uuid");
    server
        .database
        .sql()
        .await
        .execute(
            "insert into queen_streams.quota (tenant_id, enabled, max_queries) values ($1, $2, $3)
             on conflict (tenant_id) do update set enabled = $2, max_queries = $3",
            &[&tenant, &enabled, &cap],
        )
        .await
        .expect("a grant");
}

fn registration(name: &str) -> Value {
    json!({"name": name, "source_queue": "q", "config_hash": "h"})
}

/// streams Q11, streams Q12, streams Q13, streams Q14, streams Q16, streams Q17, streams Q18
#[tokio::test(flavor = "multi_thread")]
async fn new_queries_need_a_grant_within_its_cap() {
    let (server, a, b) = shared().await;
    let denied = a.post(QUERIES, &registration("one")).await.expect(403);
    assert_eq!((&denied["success"], &denied["denied"]), (&json!(false), &json!(true)));
    assert!(denied["error"].as_str().expect("text").contains("not granted"), "{denied}");
    grant(&server, A, false, None).await;
    assert_eq!(a.post(QUERIES, &registration("one")).await.status, 403);
    grant(&server, A, true, Some(2)).await;
    grant(&server, B, true, None).await;
    b.post(QUERIES, &registration("theirs")).await.expect(200);
    a.post(QUERIES, &registration("one")).await.expect(200);
    a.post(QUERIES, &registration("two")).await.expect(200);
    let full = a.post(QUERIES, &registration("three")).await.expect(403);
    assert!(full["error"].as_str().expect("text").contains('2'), "{full}");
    assert_eq!(full["denied"], true);
    // Names that exist pass, whatever became of the grant.
    grant(&server, A, false, Some(0)).await;
    a.post(QUERIES, &registration("one")).await.expect(200);
    let mut other = registration("one");
    other["config_hash"] = json!("other");
    let conflict = a.post(QUERIES, &other).await.expect(409);
    assert!(conflict.get("denied").is_none(), "{conflict}");
    other["reset"] = json!(true);
    a.post(QUERIES, &other).await.expect(200);
    // The default tenant never reads the grant table.
    grant(&server, "00000000-0000-0000-0000-000000000001", false, Some(0)).await;
    server.client().post(QUERIES, &registration("free")).await.expect(200);
    server.stop().await;
}

/// streams Q15
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_is_exact_under_concurrency() {
    let (server, a, _) = shared().await;
    grant(&server, A, true, Some(5)).await;
    let names: Vec<Value> = (0..20).map(|n| registration(&format!("q{n}"))).collect();
    let answers =
        futures_util::future::join_all(names.iter().map(|body| a.post(QUERIES, body))).await;
    let good = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(good, 5);
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 403)));
    server.stop().await;
}

/// streams W8: a query that the server runs needs the grant like any other.
#[tokio::test(flavor = "multi_thread")]
async fn hosted_queries_need_the_grant_too() {
    let (server, a, _) = shared().await;
    let module = guest::upload(&a, guest::probe()).await;
    let body = json!({"name": "hosted", "source_queue": "q", "module": module});
    let denied = a.post(QUERIES, &body).await.expect(403);
    assert_eq!(denied["denied"], true, "{denied}");
    grant(&server, A, true, Some(1)).await;
    a.post(QUERIES, &body).await.expect(200);
    let full = a.post(QUERIES, &registration("one more")).await.expect(403);
    assert_eq!(full["denied"], true, "{full}");
    server.stop().await;
}

/// streams C4, streams C5, streams G16, streams G17, streams G18, streams G19, streams Q24,
/// streams Y7, streams P7
#[tokio::test(flavor = "multi_thread")]
async fn the_same_names_belong_to_each_tenant_alone() {
    let (server, a, b) = shared().await;
    grant(&server, A, true, None).await;
    grant(&server, B, true, None).await;
    let mut ids = Vec::new();
    for client in [&a, &b] {
        client.push("q", "p", &[json!(1)]).await;
        let query = client.register("same", "q").await;
        let popped = client.pop("q", "consumerGroup=streams.same&subscriptionMode=all").await;
        assert_eq!(popped.len(), 1, "one's own message only");
        ids.push((query, popped[0].clone()));
    }
    let ((query_a, message_a), (query_b, message_b)) = (&ids[0], &ids[1]);
    assert_ne!(query_a, query_b);
    assert_ne!(message_a["partitionId"], message_b["partitionId"]);
    let cycle = |query: &str, message: &Value| {
        json!({"query_id": query, "partition_id": message["partitionId"],
               "consumer_group": "streams.same",
               "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
               "push_items": [{"queue": "sink", "payload": 1}],
               "ack": {"leaseId": message["leaseId"], "count": 1}})
    };
    // B with A's partition: the same answer as for one that does not exist.
    let nowhere = json!({"partitionId": "0193f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f"});
    let malformed = json!({"partitionId": "no uuid"});
    for partition in [message_a, &nowhere, &malformed] {
        let refused = b.post("/streams/v1/cycle", &cycle(query_b, partition)).await;
        assert_eq!((refused.status, refused.body), (404, json!({"error": "not found"})));
        let read = json!({"query_id": query_b, "partition_id": partition["partitionId"]});
        let refused = b.post("/streams/v1/state/get", &read).await;
        assert_eq!((refused.status, refused.body), (404, json!({"error": "not found"})));
    }
    let missing = b.post("/streams/v1/state/get", &json!({"query_id": query_b})).await;
    assert_eq!((missing.status, &missing.body["success"]), (400, &json!(false)));
    // B with its own partition and A's query.
    let foreign = b.post("/streams/v1/cycle", &cycle(query_a, message_b)).await.expect(200);
    assert_eq!(foreign["error"], "query not found", "{foreign}");
    assert_eq!(a.cycle(&cycle(query_a, message_a)).await["success"], true);
    let read = json!({"query_id": query_a, "partition_id": message_b["partitionId"]});
    let rows = b.post("/streams/v1/state/get", &read).await.expect(200);
    assert_eq!(rows["rows"], json!([]), "{rows}");
    assert_eq!(b.pop("sink", "subscriptionMode=all").await.len(), 0, "A's sink is A's");
    assert_eq!(a.pop("sink", "subscriptionMode=all").await.len(), 1);
    let mut other = registration("same");
    other["config_hash"] = json!("other");
    let conflict = b.post(QUERIES, &other).await.expect(409);
    assert_eq!(conflict["query_id"], query_b.as_str(), "the caller's own row");
    // Leases, acks and deletion by another tenant move nothing.
    let lease = message_b["leaseId"].as_str().expect("a lease");
    let extended = a.post(&format!("/api/v1/lease/{lease}/extend"), &json!({})).await.expect(200);
    assert_eq!(extended["success"], false, "{extended}");
    let ack = json!({"transactionId": message_b["transactionId"], "leaseId": lease,
                     "partitionId": message_b["partitionId"], "consumerGroup": "streams.same"});
    let acked = a.post("/api/v1/ack", &ack).await.expect(200);
    assert_eq!(acked[0]["success"], false, "{acked}");
    a.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!(b.cycle(&cycle(query_b, message_b)).await["success"], true);
    server.stop().await;
}

/// A header that is no UUID is refused; with tenancy off it is not even read (streams C6).
#[tokio::test(flavor = "multi_thread")]
async fn the_header_is_checked_or_ignored() {
    let (server, _, _) = shared().await;
    let bad = server.client().for_tenant("acme");
    let refused = bad.post(QUERIES, &registration("x")).await.expect(400);
    assert_eq!(refused["error"], "invalid x-queen-tenant header (must be a UUID)");
    server.stop().await;
    let server = TestServer::start().await;
    let anyone = server.client().for_tenant("acme");
    anyone.push("q", "p", &[json!(1)]).await;
    assert_eq!(server.client().pop("q", "subscriptionMode=all").await.len(), 1);
    server.stop().await;
}
