//! Traces of messages.

use serde_json::{Value, json};

use super::{all, execute, fill, pop_all};
use crate::support::TestServer;

/// control 69, control 70, control 71, control 72, control 73: traces are recorded, read by message
/// and by name, and outlive the message but not the partition.
#[tokio::test(flavor = "multi_thread")]
async fn traces_are_kept_by_message_and_name() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["t/1"]).await;
    let held = pop_all(&client, "q", "g").await;
    let partition = held[0]["partitionId"].as_str().expect("text").to_owned();
    let record = async |extra: &str| {
        let body = format!(r#"{{"transactionId":"t/1","partitionId":"{partition}"{extra}}}"#);
        let answer = client.post_text("/api/v1/traces", body).await.expect(201);
        assert_eq!(answer["success"], true);
        answer["traceId"].clone()
    };
    let data = r#"{"z":1.0,"a":[0.10,"\u0000"]}"#;
    let first = record(&format!(r#","data":{data},"traceNames":null"#)).await;
    execute(&server, "delete from queen.log_segments").await;
    let second =
        record(r#","data":null,"traceNames":"order","consumerGroup":"g","eventType":"step""#);
    let second = second.await;
    let third = record(r#","data":[],"traceNames":["order","flow","order"]"#).await;

    let of_message = format!("/api/v1/traces/{partition}/t%2F1");
    let found = client.get(&of_message).await;
    assert!(found.text.contains(data), "as it was spelled: {}", found.text);
    let traces = found.expect(200)["traces"].clone();
    assert_eq!(all(&traces, "id"), [&first, &second, &third], "oldest first");
    let names = all(&traces, "trace_names");
    assert_eq!(names, [&json!([]), &json!(["order"]), &json!(["flow", "order"])]);
    assert_eq!(all(&traces, "event_type"), ["info", "step", "info"]);
    assert_eq!(all(&traces, "consumer_group"), ["__QUEUE_MODE__", "g", "__QUEUE_MODE__"]);
    assert!(traces[0]["worker_id"].is_string() && traces[0]["created_at"].is_string());

    let named = client.get("/api/v1/traces/by-name/order?limit=1&offset=1").await.expect(200);
    assert_eq!(
        (&named["total"], &named["pagination"]),
        (&json!(2), &json!({"limit": 1, "offset": 1}))
    );
    let trace = &named["traces"][0];
    assert_eq!((&trace["id"], named["traces"].as_array().map(Vec::len)), (&third, Some(1)));
    let place =
        ["transaction_id", "partition_id", "queue_name", "partition_name"].map(|k| &trace[k]);
    assert_eq!(place, [&json!("t/1"), &json!(partition), &json!("q"), &json!("p")]);
    assert_eq!(trace.get("message_payload"), Some(&Value::Null));
    let known = client.get("/api/v1/traces/names").await.expect(200);
    assert_eq!(
        (&known["total"], &known["pagination"]),
        (&json!(2), &json!({"limit": 50, "offset": 0}))
    );
    let counts = [("flow", 1), ("order", 2)].map(|(name, traces)| {
        json!({"trace_name": name, "trace_count": traces, "message_count": 1,
               "last_seen": trace["created_at"]})
    });
    assert_eq!(known["trace_names"], json!(counts));

    for (body, error) in [
        (
            json!({"partitionId": partition, "data": 1}),
            "transactionId and partitionId are required",
        ),
        (json!({"transactionId": "t", "data": 1}), "transactionId and partitionId are required"),
        (json!({"transactionId": "t", "partitionId": partition}), "data is required"),
    ] {
        let answer = client.post("/api/v1/traces", &body).await.expect(400);
        assert_eq!(answer["error"], error);
    }
    let unknown = json!({"transactionId": "t", "partitionId": uuid::Uuid::now_v7(), "data": 1});
    let answer = client.post("/api/v1/traces", &unknown).await.expect(404);
    assert_eq!(
        (&answer["success"], &answer["error"]),
        (&json!(false), &json!("Message not found"))
    );

    client.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!(client.get(&of_message).await.expect(200), json!({"traces": []}));
    let known = client.get("/api/v1/traces/names").await.expect(200);
    assert_eq!((&known["trace_names"], &known["total"]), (&json!([]), &json!(0)));
    let named = client.get("/api/v1/traces/by-name/order").await.expect(200);
    assert_eq!((&named["traces"], &named["total"]), (&json!([]), &json!(0)));
    server.stop().await;
}
