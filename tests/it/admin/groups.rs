//! Consumer groups: listings, deletion, subscription.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ack, all, data, execute, fill, kill, pop_all, settle};
use crate::support::{Client, TestServer, eventually};

async fn list(client: &Client) -> Value {
    client.get("/api/v1/consumer-groups").await.expect(200)
}

async fn lagging(client: &Client, query: &str) -> Value {
    client.get(&format!("/api/v1/consumer-groups/lagging{query}")).await.expect(200)
}

/// control 51, control 52, control 53: rows of the listing, and the detail by queue.
#[tokio::test(flavor = "multi_thread")]
async fn groups_are_listed_by_queue() {
    let server = TestServer::start().await;
    let client = server.client();
    assert_eq!(list(&client).await, json!([]));
    assert_eq!(client.get("/api/v1/consumer-groups/none").await.expect(200), json!({}));
    fill(&client, "q", "p", &["1", "2", "3"]).await;
    fill(&client, "q", "r", &["4"]).await;
    fill(&client, "s", "p", &["5"]).await;
    assert_eq!(pop_all(&client, "s", "h").await.len(), 1);
    let held = pop_all(&client, "q/partition/p", "h").await;
    settle(&client, &held[..2]).await;
    client.pop("q", "batch=1").await;
    client.pop("s", "consumerGroup=new").await;

    let rows = list(&client).await;
    assert_eq!(all(&rows, "name"), ["__QUEUE_MODE__", "h", "h", "new"]);
    assert_eq!(all(&rows, "queueName"), ["q", "q", "s", "s"]);
    assert_eq!(rows[0]["subscriptionMode"], Value::Null);
    let row = &rows[1];
    let figures = ["members", "partitionCursors", "partitionsWithLag", "totalLag", "maxTimeLag"];
    assert_eq!(figures.map(|key| row[key].as_i64().expect(key))[..4], [1, 1, 2, 2], "{row}");
    assert_eq!((&row["topics"], &row["storage"]), (&json!(["q"]), &json!("segments")));
    assert_eq!((&row["state"], &rows[2]["state"]), (&json!("Stable"), &json!("Dead")));
    assert_eq!(
        (&row["subscriptionMode"], &rows[3]["subscriptionMode"]),
        (&json!("all"), &json!("new"))
    );
    assert!(row["subscriptionCreatedAt"].is_string() && row["subscriptionTimestamp"].is_null());
    assert_eq!((&row["conflation"], &rows[3]["totalLag"]), (&json!(false), &json!(0)));

    let detail = client.get("/api/v1/consumer-groups/h").await.expect(200);
    let queues: Vec<&String> = detail.as_object().expect("by queue").keys().collect();
    assert_eq!(queues, ["q", "s"]);
    let cursor = &detail["q"]["partitions"][0];
    assert_eq!(detail["q"]["partitions"].as_array().map(Vec::len), Some(1));
    assert_eq!((&cursor["partition"], &cursor["workerId"]), (&json!("p"), &Value::Null));
    assert_eq!((&cursor["totalConsumed"], &cursor["offsetLag"]), (&json!(2), &json!(1)));
    assert_eq!((&cursor["leaseActive"], &detail["q"]["conflation"]), (&json!(true), &json!(false)));
    settle(&client, &held[2..]).await;
    let detail = client.get("/api/v1/consumer-groups/h").await.expect(200);
    let cursor = &detail["q"]["partitions"][0];
    assert_eq!((&cursor["totalConsumed"], &cursor["offsetLag"]), (&json!(3), &json!(0)));
    assert_eq!((&cursor["leaseActive"], &cursor["timeLagSeconds"]), (&json!(false), &json!(0)));
    server.stop().await;
}

/// control 54, control 55: who is behind, and who is not.
#[tokio::test(flavor = "multi_thread")]
async fn only_cursors_that_are_behind_are_lagging() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["1"]).await;
    fill(&client, "q", "r", &["2", "3"]).await;
    settle(&client, &pop_all(&client, "q", "done").await).await;
    let held = pop_all(&client, "q/partition/r", "behind").await;
    settle(&client, &held[..1]).await;
    execute(&server, "update queen.log_segments set created_at = created_at - interval '2 hours'")
        .await;
    let rows = lagging(&client, "").await;
    assert_eq!(all(&rows, "consumer_group"), ["behind"], "{rows}");
    let row = &rows[0];
    assert_eq!((&row["queue_name"], &row["partition_name"]), (&json!("q"), &json!("r")));
    assert_eq!((&row["partition_id"], &row["offset_lag"]), (&held[0]["partitionId"], &json!(1)));
    let seconds = row["time_lag_seconds"].as_i64().expect("seconds");
    assert!((7_200..7_260).contains(&seconds), "{row}");
    assert!(row["lag_hours"].as_f64().is_some_and(|h| (2.0..2.02).contains(&h)), "{row}");
    assert!(row["oldest_unconsumed_at"].is_string() && row["worker_id"].is_null(), "{row}");
    assert_eq!(lagging(&client, "?minLagSeconds=8000").await, json!([]));
    assert_eq!(all(&lagging(&client, "?minLagSeconds=0").await, "consumer_group"), ["behind"]);
    assert_eq!(list(&client).await[0]["state"], "Lagging");
    settle(&client, &held[1..]).await;
    assert_eq!(lagging(&client, "?minLagSeconds=0").await, json!([]));
    server.stop().await;
}

/// control 56, control 57, control 58, control 59, data 120: a deleted group starts anew; queues
/// and groups beside it stay, and so do dead letters. Its leases are dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_group_starts_anew() {
    let server = TestServer::start().await;
    let client = server.client();
    for queue in ["q", "s"] {
        fill(&client, queue, "p", &["1", "2"]).await;
        fill(&client, queue, "r", &["3"]).await;
        kill(&client, &format!("{queue}/partition/p"), "g", "bad").await;
        settle(&client, &pop_all(&client, &format!("{queue}/partition/p"), "g").await).await;
        settle(&client, &pop_all(&client, queue, "other").await[..1]).await;
    }
    let held = pop_all(&client, "q/partition/r", "g").await;
    let delete = async |path: &str| {
        client.delete(&format!("/api/v1/consumer-groups/{path}")).await.expect(200)
    };
    assert_eq!(
        delete("g/queues/q").await,
        json!({"success": true, "consumerGroup": "g", "queueName": "q", "deletedPartitions": 2,
               "metadataDeleted": true})
    );
    assert_eq!(ack(&client, &held[0], "completed", None).await["success"], false, "a dead lease");
    assert!(client.pop("s/partition/p", "consumerGroup=g").await.is_empty(), "other queues stay");
    assert_eq!(data(&pop_all(&client, "q", "g").await), ["1", "2", "3"]);
    assert_eq!(client.get("/api/v1/dlq?queue=q").await.expect(200)["total"], 1);

    let answer = delete("g").await;
    assert_eq!(answer["deletedPartitions"], 3, "two on q, one on s: {answer}");
    assert_eq!(answer.get("queueName"), None);
    for queue in ["q", "s"] {
        assert_eq!(data(&pop_all(&client, queue, "g").await), ["1", "2", "3"], "{queue}");
    }
    for path in ["g/queues/none", "none", "none/queues/q", "lagging"] {
        assert_eq!(delete(path).await["deletedPartitions"], 0, "{path}");
    }
    let detail = client.get("/api/v1/consumer-groups/other").await.expect(200);
    let consumed = all(&detail["q"]["partitions"], "totalConsumed");
    assert_eq!(consumed.iter().filter_map(|n| n.as_i64()).sum::<i64>(), 1, "other groups stay");
    // Without its registration the next mode counts: the server's default here.
    delete("g/queues/q").await;
    assert!(client.pop("q", "consumerGroup=g").await.is_empty());
    fill(&client, "q", "p", &["4"]).await;
    assert_eq!(data(&client.pop("q", "consumerGroup=g").await), ["4"]);
    server.stop().await;
}

/// control 56, control 66, control 67: with its registration kept, the stored subscription decides
/// where a group starts again; it can be moved.
#[tokio::test(flavor = "multi_thread")]
async fn a_kept_subscription_sets_the_start() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["1"]).await;
    settle(&client, &pop_all(&client, "q", "all").await).await;
    assert!(client.pop("q", "consumerGroup=new&subscriptionMode=new").await.is_empty());
    fill(&client, "q", "p", &["2"]).await;
    fill(&client, "q", "r", &["3"]).await;
    for group in ["all", "new"] {
        let path = format!("/api/v1/consumer-groups/{group}?deleteMetadata=false");
        let answer = client.delete(&path).await.expect(200);
        assert_eq!(
            (&answer["deletedPartitions"], &answer["metadataDeleted"]),
            (&json!(1), &json!(false))
        );
    }
    assert_eq!(data(&pop_all(&client, "q", "all").await), ["1", "2", "3"]);
    assert!(pop_all(&client, "q", "new").await.is_empty(), "mode new: past what is there");
    fill(&client, "q", "r", &["4"]).await;
    settle(&client, &pop_all(&client, "q", "new").await).await;

    let rows = client.get("/api/v1/messages?queue=q").await.expect(200);
    let second = all(&rows["messages"], "data").iter().position(|d| **d == "2").expect("listed");
    let at = rows["messages"][second]["createdAt"].as_str().expect("text");
    let moved = at.replace('Z', "000+00:00");
    let path = "/api/v1/consumer-groups/new/subscription";
    let body = json!({"subscriptionTimestamp": moved});
    assert_eq!(
        client.post(path, &body).await.expect(200),
        json!({"success": true, "consumerGroup": "new", "newTimestamp": moved, "rowsUpdated": 1})
    );
    assert!(pop_all(&client, "q", "new").await.is_empty(), "no cursor moves");
    assert_eq!(all(&list(&client).await, "subscriptionTimestamp"), [&Value::Null, &json!(at)]);
    client.delete("/api/v1/consumer-groups/new/queues/q?deleteMetadata=0").await.expect(200);
    assert_eq!(data(&pop_all(&client, "q", "new").await), ["2", "3", "4"]);
    let none = client.post("/api/v1/consumer-groups/none/subscription", &body).await.expect(200);
    assert_eq!(none["rowsUpdated"], 0);
    for body in ["", "{}", r#"{"subscriptionTimestamp":""}"#, r#"{"subscriptionTimestamp":"soon"}"#]
    {
        client.post_text(path, body.to_owned()).await.expect(400);
    }
    server.stop().await;
}

/// control 57: another broker that remembers a deleted group registers it anew, and its waiting
/// pops go on.
#[tokio::test(flavor = "multi_thread")]
async fn other_brokers_learn_of_a_deletion() {
    let first = TestServer::start().await;
    let second = TestServer::on(Arc::clone(&first.database)).await;
    let (client, other) = (first.client(), second.client());
    fill(&client, "q", "p", &["1", "2"]).await;
    settle(&client, &pop_all(&other, "q", "g").await).await;
    let parked = {
        let other = other.clone();
        let query = "consumerGroup=g&subscriptionMode=all&wait=true&timeout=30000";
        tokio::spawn(async move { other.pop("q", query).await })
    };
    eventually("a pop is parked", async || {
        let text = other.get("/metrics/prometheus").await.text;
        text.contains("queen_parked_long_polls{queue=\"q\"} 1").then_some(())
    })
    .await;
    let gone = client.delete("/api/v1/consumer-groups/g").await.expect(200);
    assert_eq!(gone["deletedPartitions"], 1);
    let held = parked.await.expect("no panic");
    assert_eq!(data(&held), ["1", "2"]);
    settle(&other, &held).await;
    assert_eq!(list(&client).await[0]["totalLag"], 0);
    // A group that is gone while nobody waits: the memory of it gets no cursor.
    let sql = "with gone as (delete from queen.log_groups returning group_no)
               delete from queen.log_consumers c using gone where c.group_no = gone.group_no";
    execute(&first, sql).await;
    eventually("the group is registered anew", async || {
        let held = pop_all(&other, "q", "g").await;
        (data(&held) == ["1", "2"]).then_some(())
    })
    .await;
    let orphans = "select count(*) from queen.log_consumers c
                    where not exists (select from queen.log_groups g where g.group_no = c.group_no)";
    let row = first.database.sql().await.query_one(orphans, &[]).await.expect(orphans);
    assert_eq!(row.get::<_, i64>(0), 0);
    second.stop().await;
    first.stop().await;
}
