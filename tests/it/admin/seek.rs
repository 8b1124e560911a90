//! Cursors that are moved.

use serde_json::{Value, json};

use super::{ack, data, execute, fill, pop_all, settle};
use crate::support::{Client, TestServer};

async fn seek(client: &Client, queue: &str, body: &Value) -> Value {
    let path = format!("/api/v1/consumer-groups/g/queues/{queue}/seek");
    client.post(&path, body).await.expect(200)
}

/// data 121, control 60, control 61, control 64, control 59: to the beginning, to the
/// end, to an instant; live
/// leases are freed, and other groups stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_moves_every_partition() {
    let server = TestServer::start().await;
    let client = server.client();
    for keys in [["1", "2"], ["3", "4"], ["5", "6"]] {
        fill(&client, "q", "p", &keys).await;
    }
    fill(&client, "q", "r", &["7"]).await;
    settle(&client, &pop_all(&client, "q", "g").await).await;
    settle(&client, &pop_all(&client, "q", "other").await).await;
    fill(&client, "q", "s", &["8"]).await;
    let parked = {
        let client = client.clone();
        let query = "consumerGroup=g&partitions=5&wait=true&timeout=30000&batch=100";
        tokio::spawn(async move { client.pop("q/partition/r", query).await })
    };
    let start = json!({"timestamp": "1970-01-01T00:00:00.000Z"});
    assert_eq!(
        seek(&client, "q", &start).await,
        json!({"success": true, "consumerGroup": "g", "queueName": "q", "seekToEnd": false,
               "targetTimestamp": "1970-01-01T00:00:00.000Z", "partitionsUpdated": 3})
    );
    assert_eq!(data(&parked.await.expect("no panic")), ["7"], "a waiting pop is woken");
    let held = pop_all(&client, "q", "g").await;
    assert_eq!(data(&held), ["1", "2", "3", "4", "5", "6", "8"], "once, but what is leased");
    assert!(pop_all(&client, "q", "g").await.is_empty());

    let end = seek(&client, "q", &json!({"toEnd": true, "timestamp": "x"})).await;
    assert_eq!((&end["seekToEnd"], &end["targetTimestamp"]), (&json!(true), &Value::Null));
    assert_eq!(ack(&client, &held[0], "completed", None).await["success"], false, "a dead lease");
    assert!(pop_all(&client, "q", "g").await.is_empty());
    fill(&client, "q", "p", &["9"]).await;
    settle(&client, &pop_all(&client, "q", "g").await).await;
    assert_eq!(data(&pop_all(&client, "q", "other").await), ["8", "9"]);

    // Each message of a segment shares its instant; one past everything is the end.
    let third = held.iter().find(|m| m["data"] == "3").expect("delivered");
    let at = third["createdAt"].as_str().expect("text");
    seek(&client, "q", &json!({"timestamp": at})).await;
    let found = client.pop("q/partition/p", "batch=100&consumerGroup=g").await;
    assert_eq!(data(&found), ["3", "4", "5", "6", "9"]);
    seek(&client, "q", &json!({"timestamp": "2999-01-01T00:00:00+02:00"})).await;
    assert!(pop_all(&client, "q", "g").await.is_empty());
    execute(&server, "delete from queen.log_segments where first_offset < 4").await;
    seek(&client, "q", &start).await;
    let detail = client.get("/api/v1/consumer-groups/g").await.expect(200);
    let lags = super::all(&detail["q"]["partitions"], "offsetLag");
    assert_eq!(lags, [&json!(3), &json!(0), &json!(0)], "bounded by what is retained");
    server.stop().await;
}

/// control 62, control 63, control 65: what a seek refuses, and one partition alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_seek_may_be_of_one_partition() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["1", "2"]).await;
    fill(&client, "q", "r", &["3"]).await;
    client.post("/api/v1/configure", &json!({"queue": "empty"})).await.expect(200);
    let held = pop_all(&client, "q", "g").await;
    settle(&client, &held[..1]).await;
    let path = "/api/v1/consumer-groups/g/queues/q/seek";
    for body in
        ["", "{}", r#"{"position":"earliest"}"#, r#"{"toEnd":false}"#, r#"{"timestamp":"x"}"#]
    {
        client.post_text(path, body.to_owned()).await.expect(400);
    }
    for queue in ["none", "empty"] {
        let path = format!("/api/v1/consumer-groups/g/queues/{queue}/seek");
        let answer = client.post(&path, &json!({"toEnd": true})).await.expect(404);
        assert_eq!(
            answer,
            json!({"success": false, "error": "Queue not found or has no partitions",
                   "consumerGroup": "g", "queueName": queue, "partitionsUpdated": 0})
        );
    }
    let one =
        |partition: &str| format!("/api/v1/consumer-groups/g/queues/q/partitions/{partition}/seek");
    let answer = client.post_text(&one("none"), String::new()).await.expect(404);
    assert_eq!(answer, json!({"success": false, "error": "Partition not found"}));
    client.post(&one("p"), &json!({"position": "earliest"})).await.expect(400);
    let last = held.last().expect("three messages");
    let (moved, left) = if last["partition"] == "p" { ("p", "r") } else { ("r", "p") };
    for body in ["", "{}"] {
        let answer = client.post_text(&one(moved), body.to_owned()).await.expect(200);
        assert_eq!(
            answer,
            json!({"success": true, "consumerGroup": "g", "queueName": "q", "partitionName": moved,
                   "seekToEnd": true, "targetTimestamp": null, "updated": true})
        );
    }
    assert_eq!(ack(&client, last, "completed", None).await["success"], false, "its lease is freed");
    let kept: Vec<&Value> = held.iter().filter(|m| m["partition"] == left).collect();
    assert_eq!(ack(&client, kept[kept.len() - 1], "completed", None).await["success"], true);
    let body = json!({"timestamp": "1970-01-01T00:00:00Z"});
    client.post(&one("p"), &body).await.expect(200);
    assert_eq!(data(&pop_all(&client, "q", "g").await), ["1", "2"]);

    // A group that never popped is registered as by a pop without a mode, then moved.
    let path = "/api/v1/consumer-groups/fresh/queues/q/partitions/r/seek";
    client.post(path, &body).await.expect(200);
    assert_eq!(data(&client.pop("q", "consumerGroup=fresh&partitions=5").await), ["3"]);
    server.stop().await;
}
