//! The status page.

use serde_json::{Value, json};

use super::{ack, all, fill, kill, pop_all, settle};
use crate::support::TestServer;

/// control 13, control 68, control 74, control 75: figures of queues, of one queue, and
/// of a window;
/// a refresh changes none of them.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_page_shows_queues_and_a_window() {
    let server = TestServer::start().await;
    let client = server.client();
    let idle = client.get("/api/v1/status").await.expect(200);
    for key in ["bucketMinutes", "pointCount", "statsAge"] {
        assert!(idle[key].is_i64(), "{key}: {idle}");
    }
    assert!(idle["throughput"].is_array() && idle["workers"].is_array());
    let options = json!({"retryDelay": 5, "ttl": 6, "maxSize": 7, "priority": 8});
    let body = json!({"queue": "q", "namespace": "n", "options": options});
    client.post("/api/v1/configure", &body).await.expect(200);
    fill(&client, "q", "p", &["1", "2", "3", "4"]).await;
    fill(&client, "other", "p", &["5"]).await;
    kill(&client, "q", "g", "smtp 550").await;
    let held = pop_all(&client, "q", "g").await;
    settle(&client, &held[..1]).await;

    let messages = json!({"total": 4, "pending": 2, "processing": 2, "completed": 1,
                          "deadLetter": 1});
    let check = async || {
        let queues = client.get("/api/v1/status/queues").await.expect(200);
        assert_eq!(queues["pagination"], json!({"limit": 100, "offset": 0}));
        assert_eq!(queues.get("total"), None);
        assert_eq!(all(&queues["queues"], "name"), ["other", "q"]);
        assert_eq!(queues["queues"][1]["messages"], messages, "pending holds what is processing");
        let listed = client.get("/api/v1/resources/queues").await.expect(200);
        assert_eq!(listed["queues"][1]["segments"]["messages"], 4);
    };
    check().await;
    let refreshed = client.post_text("/api/v1/stats/refresh", String::new()).await.expect(200);
    assert_eq!(
        (&refreshed["engine"], &refreshed["queuesUpdated"]),
        (&json!("segments"), &json!(2))
    );
    assert_eq!(
        (&refreshed["segPartitions"], &refreshed["system"]),
        (&json!(2), &json!({"systemUpdated": 1}))
    );
    assert_eq!(refreshed["namespaces"], json!({"namespacesUpdated": 2}));
    check().await;
    let page = client.get("/api/v1/status/queues?limit=1&offset=1&namespace=").await.expect(200);
    assert_eq!(all(&page["queues"], "name"), ["q"]);
    let page = client.get("/api/v1/status/queues?namespace=n&task=").await.expect(200);
    assert_eq!(all(&page["queues"], "name"), ["q"]);

    let detail = client.get("/api/v1/status/queues/q").await.expect(200);
    assert_eq!(
        detail["queue"]["config"],
        json!({"leaseTime": 300, "retryLimit": 3, "retryDelay": 5, "ttl": 6, "maxQueueSize": 7,
               "deadLetterQueue": true})
    );
    assert_eq!(
        (&detail["queue"]["priority"], &detail["queue"]["namespace"]),
        (&json!(8), &json!("n"))
    );
    let mut counts = messages.clone();
    counts["failed"] = Value::Null;
    let partition = &detail["partitions"][0];
    assert_eq!((&partition["messages"], &partition["stats"]), (&counts, &counts));
    assert_eq!(partition["cursor"]["totalConsumed"], 2);
    assert!(partition["lastActivity"].as_str() >= partition["newestMessage"].as_str());
    assert_eq!(detail["totals"], json!({"messages": counts}));
    let unknown = client.get("/api/v1/status/queues/none").await.expect(404);
    assert_eq!(unknown, json!({"error": "Queue not found"}));

    let status = client.get("/api/v1/status?queue=q").await.expect(200);
    assert_eq!(status["bucketMinutes"], 1);
    assert_eq!(
        status["pointCount"],
        status["throughput"].as_array().map(Vec::len).expect("points")
    );
    let ingested = all(&status["throughput"], "ingested");
    assert_eq!(ingested.iter().filter_map(|n| n.as_i64()).sum::<i64>(), 4, "{status}");
    let times = all(&status["throughput"], "timestamp");
    assert!(times.is_sorted_by(|a, b| a.as_str() > b.as_str()), "newest first");
    assert_eq!(all(&status["queues"], "name"), ["q"]);
    assert_eq!(status["queues"][0]["totalConsumed"], 2);
    assert_eq!(
        status["leases"],
        json!({"active": 1, "partitionsWithLeases": 1, "totalBatchSize": 3, "totalAcked": 1})
    );
    assert_eq!(
        status["deadLetterQueue"],
        json!({"totalMessages": 1, "affectedPartitions": 1,
               "topErrors": [{"error": "smtp 550", "count": 1}]})
    );
    assert_eq!(
        (&status["messages"]["total"], &status["messages"]["failed"]),
        (&json!(4), &json!(0))
    );
    assert!(status["messages"]["requests"]["push"].is_u64() && status["errors"].is_object());
    let long = "/api/v1/status?from=2001-01-01T00:00:00Z";
    assert_eq!(client.get(long).await.expect(200)["pointCount"], 361, "90 days at most");
    assert_eq!(ack(&client, &held[2], "completed", None).await["success"], true);
    server.stop().await;
}
