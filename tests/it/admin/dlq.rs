//! Dead letters: what they show, and their removal.

use serde_json::{Value, json};

use super::{ack, address, all, execute, fill, kill, pop_all};
use crate::support::{Client, TestServer};

async fn list(client: &Client, query: &str) -> Value {
    let found = client.get(&format!("/api/v1/dlq?{query}")).await.expect(200);
    assert_eq!(found["total"], found["messages"].as_array().expect("a list").len());
    found
}

/// control 43, control 44, control 47: a record shows the message as it was pushed and why it was
/// given up, whichever way.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_shows_message_and_reason() {
    let server = TestServer::start().await;
    let client = server.client();
    let empty = list(&client, "").await;
    assert_eq!(
        empty,
        json!({"messages": [], "pagination": {"limit": 100, "offset": 0}, "total": 0})
    );
    let payload = r#"{"z":1.0,"a":[0.10,18446744073709551615,"\u0000"]}"#;
    let body = format!(
        r#"{{"items":[{{"queue":"q","partition":"p","transactionId":"1","payload":{payload}}}]}}"#
    );
    client.post_text("/api/v1/push", body).await.expect(201);
    fill(&client, "q", "p", &["2", "3"]).await;

    let first = kill(&client, "q", "g", "plain").await;
    let held = pop_all(&client, "q", "g").await;
    let entry = |m: &Value, error: &str| {
        json!({"transactionId": m["transactionId"], "partitionId": m["partitionId"],
               "leaseId": m["leaseId"], "status": "dlq", "error": error})
    };
    let batch = json!({"acknowledgments": [entry(&held[0], "in a batch")], "consumerGroup": "g"});
    client.post("/api/v1/ack/batch", &batch).await.expect(200);
    let held = pop_all(&client, "q", "g").await;
    let mut step = entry(&held[0], "in a transaction");
    step["type"] = json!("ack");
    step["consumerGroup"] = json!("g");
    let body = json!({"operations": [step], "requiredLeases": [held[0]["leaseId"]]});
    let done = client.post("/api/v1/transaction", &body).await.expect(200);
    assert_eq!(done["success"], true, "{done}");

    let found = client.get("/api/v1/dlq?queue=q").await;
    assert!(found.text.contains(payload), "as it was spelled: {}", found.text);
    let found = found.expect(200);
    let reasons = ["in a transaction", "in a batch", "plain"];
    assert_eq!(all(&found["messages"], "errorMessage"), reasons, "newest failure first");
    let row = &found["messages"][2];
    for field in ["transactionId", "partitionId", "partition", "consumerGroup"] {
        assert_eq!(row[field], first[field], "{field}");
    }
    assert_eq!((&row["queue"], &row["retryCount"]), (&json!("q"), &json!(0)));
    assert_eq!(row["producerSub"], Value::Null);
    assert!(row["createdAt"].as_str() <= row["failedAt"].as_str(), "{row}");
    assert_eq!(row["id"].as_str().map(str::len), Some(36));
    server.stop().await;
}

/// control 45, control 46, control 50: filters and pages; records outlive their messages, and go
/// with their queue.
#[tokio::test(flavor = "multi_thread")]
async fn records_are_filtered_paged_and_kept() {
    let server = TestServer::start().await;
    let client = server.client();
    for queue in ["q", "s"] {
        fill(&client, queue, "p", &["1", "2"]).await;
        fill(&client, queue, "r", &["3"]).await;
    }
    for (queue, group) in [
        ("q/partition/p", "g"),
        ("q/partition/p", "h"),
        ("s/partition/p", "g"),
        ("q/partition/r", "g"),
        ("q/partition/p", "g"),
    ] {
        kill(&client, queue, group, &format!("{queue} {group}")).await;
    }
    for (query, expected) in [
        ("", vec!["2", "3", "1", "1", "1"]),
        ("queue=q", vec!["2", "3", "1", "1"]),
        ("queue=s", vec!["1"]),
        ("queue=S", vec![]),
        ("consumerGroup=g&queue=q", vec!["2", "3", "1"]),
        ("consumerGroup=h", vec!["1"]),
        ("partition=r", vec!["3"]),
        ("limit=2", vec!["2", "3"]),
        ("limit=2&offset=3", vec!["1", "1"]),
        ("limit=-1&offset=-7&queue=s", vec!["1"]),
        ("from=2999-01-01T00:00:00Z", vec![]),
        ("to=2999-01-01T00:00:00Z&queue=s", vec!["1"]),
    ] {
        assert_eq!(all(&list(&client, query).await["messages"], "data"), expected, "{query}");
    }
    assert_eq!(
        list(&client, "limit=2&offset=3").await["pagination"],
        json!({"limit": 2, "offset": 3})
    );
    client.get("/api/v1/dlq?from=soon").await.expect(400);

    execute(&server, "delete from queen.log_segments").await;
    assert_eq!(list(&client, "queue=q").await["total"], 4);
    client.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!(all(&list(&client, "").await["messages"], "queue"), ["s"]);
    server.stop().await;
}

/// control 35, control 36, control 48, control 49: removal by address and by queue.
#[tokio::test(flavor = "multi_thread")]
async fn records_are_removed_by_address_and_by_queue() {
    let server = TestServer::start().await;
    let client = server.client();
    for queue in ["q", "q2"] {
        fill(&client, queue, "p", &["1", "2"]).await;
        for group in ["g", "h"] {
            kill(&client, queue, group, "bad").await;
        }
    }
    let dead = kill(&client, "q", "g", "bad").await;
    let first = list(&client, "queue=q").await["messages"][2].clone();
    let path = address(&first);
    let gone = client.delete(&path).await.expect(200);
    assert_eq!((&gone["success"], &gone["transactionId"]), (&json!(true), &json!("1")));
    assert_eq!(gone["partitionId"], dead["partitionId"]);
    assert_eq!(client.delete(&path).await.expect(404)["success"], false);
    assert_eq!(all(&list(&client, "queue=q").await["messages"], "data"), ["2"]);

    for path in ["/api/v1/dlq", "/api/v1/dlq?queue="] {
        let answer = client.delete(path).await.expect(400);
        assert_eq!(
            (&answer["success"], &answer["error"]),
            (&json!(false), &json!("queue is required"))
        );
    }
    for (query, deleted, left) in [
        ("queue=none", 0, 3),
        ("queue=q2&consumerGroup=G", 0, 3),
        ("queue=q2&consumerGroup=g", 1, 2),
        ("queue=q", 1, 1),
        ("queue=q2", 1, 0),
    ] {
        let answer = client.delete(&format!("/api/v1/dlq?{query}")).await.expect(200);
        assert_eq!((&answer["success"], &answer["deleted"]), (&json!(true), &json!(deleted)));
        assert_eq!(list(&client, "").await["total"], left, "{query}");
    }
    // Nothing of this moved a cursor.
    let held = pop_all(&client, "q2", "g").await;
    assert_eq!(ack(&client, &held[0], "completed", None).await["success"], true);
    server.stop().await;
}
