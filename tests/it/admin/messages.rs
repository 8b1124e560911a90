//! Listings of messages, and one message by its address.

use serde_json::{Value, json};

use super::{ack, address, all, execute, fill, kill, pop_all, settle};
use crate::support::{Client, TestServer};

async fn list(client: &Client, query: &str) -> Value {
    let found = client.get(&format!("/api/v1/messages?{query}")).await.expect(200);
    assert_eq!(found["total"], found["messages"].as_array().expect("a list").len());
    found
}

/// control 29, control 30: filters, order and pages of a listing, and what a row shows.
#[tokio::test(flavor = "multi_thread")]
async fn listings_are_filtered_and_paged() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "n.t.x", "p", &["1", "2"]).await;
    fill(&client, "other", "p", &["3"]).await;
    fill(&client, "n.t.x", "r", &["4"]).await;
    let pushed = fill(&client, "n.t.x", "p", &["5", "6"]).await;
    let found = list(&client, "queue=n.t.x").await;
    assert_eq!(all(&found["messages"], "data"), ["6", "5", "4", "2", "1"]);
    assert_eq!(found["mode"], json!({"hasQueueMode": false, "busGroupsCount": 0, "type": "none"}));
    let row = &found["messages"][0];
    assert_eq!(row["id"], pushed[1]["message_id"]);
    let text = |key: &str| row[key].as_str().expect(key);
    assert_eq!(
        (text("transactionId"), text("status"), text("queueStatus")),
        ("6", "pending", "pending")
    );
    assert_eq!((text("queuePath"), text("namespace"), text("task")), ("n.t.x/p", "n", "t"));
    assert_eq!((text("txnHash").len(), text("partitionId").len()), (32, 36));
    assert_eq!(row["segment"], json!({"seq": 2, "frameIdx": 1}));
    assert_eq!((&row["payload"], &row["payloadAvailable"]), (&json!("6"), &json!(true)));
    assert_eq!((&row["isEncrypted"], &row["queuePriority"]), (&json!(false), &json!(0)));
    assert_eq!(row["busStatus"], json!({"consumedBy": 0, "totalGroups": 0}));

    for (query, expected) in [
        ("", vec!["6", "5", "4", "3", "2", "1"]),
        ("queue=&limit=-5&offset=x", vec!["6", "5", "4", "3", "2", "1"]),
        ("partition=p&queue=n.t.x", vec!["6", "5", "2", "1"]),
        ("ns=n&limit=2&offset=1", vec!["5", "4"]),
        ("task=t&offset=4", vec!["1"]),
        ("namespace=other", vec!["3"]),
        ("queue=N.T.X", vec![]),
        ("limit=0", vec![]),
        ("status=pending&limit=1&offset=5", vec!["1"]),
        ("status=nonsense", vec![]),
        ("to=2001-01-01T00:00:00Z&from=2000-01-01T00:00:00Z", vec![]),
        ("to=2999-01-01T00:00:00Z&from=2000-01-01T00:00:00Z&limit=1", vec!["6"]),
    ] {
        let found = list(&client, query).await;
        assert_eq!(all(&found["messages"], "data"), expected, "{query}");
    }
    client.get("/api/v1/messages?from=yesterday").await.expect(400);

    // What is older than the window is not listed unless it is asked for; an end covers its minute.
    execute(
        &server,
        "update queen.log_segments set created_at = created_at - interval '3 hours'
                       where first_offset = 0",
    )
    .await;
    assert_eq!(all(&list(&client, "").await["messages"], "data"), ["6", "5"]);
    let old = list(&client, "from=2000-01-01T00:00:00Z").await;
    assert_eq!(all(&old["messages"], "data"), ["6", "5", "4", "3", "2", "1"]);
    let at = old["messages"][4]["createdAt"].as_str().expect("text");
    let until = list(&client, &format!("queue=n.t.x&partition=p&to={at}")).await;
    assert_eq!(all(&until["messages"], "data"), ["2", "1"]);
    let from = list(&client, &format!("queue=n.t.x&partition=p&from={at}")).await;
    assert_eq!(all(&from["messages"], "data"), ["6", "5", "2", "1"]);
    server.stop().await;
}

/// control 31, control 32: states of messages, in listings and by address.
#[tokio::test(flavor = "multi_thread")]
async fn states_follow_the_cursors() {
    let server = TestServer::start().await;
    let client = server.client();
    let keys = ["1", "2", "3", "4"];
    let body = json!({"queue": "q", "options": {"leaseTime": 45, "priority": 7}});
    client.post("/api/v1/configure", &body).await.expect(200);
    fill(&client, "q", "p", &keys).await;
    fill(&client, "q", "r", &["5"]).await;
    let states = async |status: &str| {
        let found = list(&client, &format!("queue=q&status={status}")).await;
        let mode = found["mode"]["type"].as_str().expect("text").to_owned();
        (all(&found["messages"], "data").into_iter().cloned().collect::<Vec<_>>(), mode)
    };
    let held = client.pop("q/partition/p", "batch=3").await;
    let path = address(&held[1]);
    let shown = client.get(&path).await.expect(200);
    assert_eq!(shown["status"], "processing");
    assert_eq!(shown["mode"], json!({"hasQueueMode": true, "busGroupsCount": 0, "type": "queue"}));
    assert_eq!((&shown["data"], &shown["payload"]), (&json!("2"), &json!("2")));
    let group = &shown["consumerGroups"][0];
    assert_eq!(
        (&group["name"], &group["group"]),
        (&json!("__QUEUE_MODE__"), &json!("__QUEUE_MODE__"))
    );
    assert_eq!(
        (&group["consumed"], &group["leaseExpiresAt"]),
        (&json!(false), &shown["leaseExpiresAt"])
    );
    assert!(shown["leaseExpiresAt"].is_string(), "{shown}");
    assert_eq!(
        shown["queueConfig"],
        json!({"leaseTime": 45, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "priority": 7})
    );
    assert_eq!(shown.as_object().map(serde_json::Map::len), Some(21));
    assert_eq!(
        states("processing").await,
        (vec![json!("4"), json!("3"), json!("2"), json!("1")], "queue".to_owned())
    );
    settle(&client, &held).await;
    assert_eq!(states("completed").await.0, ["3", "2", "1"]);
    assert_eq!(states("pending").await.0, ["5", "4"]);

    // A named group decides from now on, even where the queue mode lags behind it.
    kill(&client, "q/partition/p", "g", "bad").await;
    assert_eq!(states("pending").await.0, ["5", "4", "3", "2"]);
    settle(&client, &pop_all(&client, "q/partition/p", "g").await).await;
    assert_eq!(
        states("completed").await,
        (vec![json!("4"), json!("3"), json!("2")], "hybrid".to_owned())
    );
    assert_eq!(states("dead_letter").await.0, ["1"]);
    let dead = client.get(&address(&held[0])).await.expect(200);
    assert_eq!((&dead["status"], &dead["errorMessage"]), (&json!("dead_letter"), &json!("bad")));
    assert_eq!(dead["mode"], json!({"hasQueueMode": true, "busGroupsCount": 1, "type": "bus"}));
    assert_eq!(all(&dead["consumerGroups"], "name"), ["g", "__QUEUE_MODE__"]);
    let bus = &list(&client, "queue=q&limit=2").await["messages"][1];
    assert_eq!(bus["busStatus"], json!({"consumedBy": 1, "totalGroups": 1}));
    assert_eq!((&bus["queueStatus"], &bus["status"]), (&json!("pending"), &json!("completed")));

    // The snapshot answers for a message that retention has removed.
    execute(&server, "delete from queen.log_segments where first_offset = 0").await;
    assert_eq!(client.get(&address(&held[0])).await.expect(200)["data"], "1");
    client.get(&path).await.expect(404);
    server.stop().await;
}

/// control 33, control 34, control 37: what is live can be read, but neither deleted nor retried.
#[tokio::test(flavor = "multi_thread")]
async fn live_messages_are_left_alone() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["1"]).await;
    let row = list(&client, "").await["messages"][0].clone();
    let path = address(&row);
    assert_eq!(client.get(&path).await.expect(200)["data"], "1");
    let partition = row["partitionId"].as_str().expect("text").to_owned();
    let unknown = uuid::Uuid::now_v7();
    for path in [
        format!("/api/v1/messages/{partition}/2"),
        format!("/api/v1/messages/{unknown}/1"),
        "/api/v1/messages/nonsense/1".to_owned(),
    ] {
        assert_eq!(client.get(&path).await.expect(404), json!({"error": "Message not found"}));
    }
    let answer = client.delete(&path).await.expect(404);
    assert_eq!(
        (&answer["success"], &answer["error"]),
        (&json!(false), &json!("Message not found"))
    );
    let answer = client.post_text(&format!("{path}/retry"), String::new()).await.expect(404);
    assert_eq!(
        (&answer["success"], &answer["error"]),
        (&json!(false), &json!("Message not found"))
    );
    assert_eq!(
        (&answer["partitionId"], &answer["transactionId"]),
        (&json!(partition), &json!("1"))
    );
    let answer = client.post(&format!("{path}/dlq"), &json!({})).await.expect(404);
    assert_eq!(answer["code"], "no_such_route");
    let held = pop_all(&client, "q", "g").await;
    assert_eq!(ack(&client, &held[0], "completed", None).await["success"], true);
    server.stop().await;
}
