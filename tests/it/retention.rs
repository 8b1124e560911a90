//! Messages leave by age, under cursors and leases, and nothing stumbles over the gap.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::support::{Database, TestServer, eventually};

/// A server that looks for old messages all the time.
async fn eager() -> TestServer {
    let database = Arc::new(Database::new().await);
    TestServer::with(database, |config| {
        config.broker.retention_every = Duration::from_millis(50);
    })
    .await
}

/// Makes everything stored so far older than any retention.
async fn age(server: &TestServer) {
    let sql = "update queen.log_segments set created_at = created_at - interval '1 day'";
    server.database.sql().await.batch_execute(sql).await.expect("ages");
}

async fn segments(server: &TestServer) -> i64 {
    let sql = server.database.sql().await;
    sql.query_one("select count(*) from queen.log_segments", &[]).await.expect("a count").get(0)
}

/// data 130: the next pop continues at the oldest retained message.
#[tokio::test(flavor = "multi_thread")]
async fn retention_under_a_cursor_is_skipped_silently() {
    let server = eager().await;
    let client = server.client();
    client.push("q", "p", &[json!(0), json!(1)]).await;
    let first = client.pop("q", "batch=1&consumerGroup=g&subscriptionMode=all").await;
    assert_eq!(first[0]["data"], 0);
    age(&server).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 60});
    client.post("/api/v1/configure", &json!({"queue": "q", "options": options})).await.expect(200);
    eventually("old messages are gone", async || (segments(&server).await == 0).then_some(()))
        .await;
    client.push("q", "p", &[json!(2)]).await;
    let ack = json!({"transactionId": first[0]["transactionId"], "status": "retry",
                     "partitionId": first[0]["partitionId"], "leaseId": first[0]["leaseId"],
                     "consumerGroup": "g"});
    // Its message is gone: the ack cannot be resolved, the lease is still good for the rest.
    let answer = client.post("/api/v1/ack", &ack).await.expect(200);
    assert_eq!(answer[0]["success"], false, "{answer}");
    let sql = server.database.sql().await;
    sql.batch_execute("update queen.log_consumers set lease_expires_at = now() - interval '1 s'")
        .await
        .expect("the lease ends");
    let next = eventually("the new message comes", async || {
        let path = "/api/v1/pop/queue/q/partition/p?consumerGroup=g";
        let answer = client.get(path).await;
        (answer.status == 200).then_some(answer.body)
    })
    .await;
    assert_eq!(next["messages"][0]["data"], 2, "{next}");
    server.stop().await;
}

/// data 131: completed retention keeps what the slowest group has not passed, and everything
/// where no group exists.
#[tokio::test(flavor = "multi_thread")]
async fn completed_retention_waits_for_the_slowest_group() {
    let server = eager().await;
    let client = server.client();
    let options = json!({"retentionEnabled": true, "completedRetentionSeconds": 60});
    client.post("/api/v1/configure", &json!({"queue": "q", "options": options})).await.expect(200);
    client.push("q", "p", &[json!(0)]).await;
    client.push("q", "p", &[json!(1)]).await;
    client.push("q", "nobody", &[json!(9)]).await;
    age(&server).await;
    let pop = |group: &str, batch: u32| {
        format!(
            "/api/v1/pop/queue/q/partition/p?autoAck=true&subscriptionMode=all&batch={batch}\
             &consumerGroup={group}"
        )
    };
    // The slow group is there first: a group that comes later finds what is retained then.
    client.get(&pop("slow", 1)).await.expect(200);
    client.get(&pop("fast", 10)).await.expect(200);
    eventually("one segment is gone", async || (segments(&server).await == 2).then_some(())).await;
    client.get(&pop("slow", 1)).await.expect(200);
    eventually("both are gone", async || (segments(&server).await == 1).then_some(())).await;
    server.stop().await;
}

/// Eviction by `maxWaitTimeSeconds` removes what nobody consumed, without a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn eviction_needs_no_retention_switch() {
    let server = eager().await;
    let client = server.client();
    client.push("q", "p", &[json!(0)]).await;
    age(&server).await;
    let options = json!({"maxWaitTimeSeconds": 60});
    client.post("/api/v1/configure", &json!({"queue": "q", "options": options})).await.expect(200);
    eventually("it is gone", async || (segments(&server).await == 0).then_some(())).await;
    assert_eq!(client.pop("q", "subscriptionMode=all").await.len(), 0);
    let sql = server.database.sql().await;
    let row = sql.query_one("select count(*) from queen.log_dead_letters", &[]).await;
    assert_eq!(row.expect("a count").get::<_, i64>(0), 0);
    server.stop().await;
}
