//! Last-value delivery.

use serde_json::{Value, json};

use super::{ack, all, check_entry, configure, fill, item, keys, push};
use crate::support::{Client, TestServer};

const GROUP: &str = "consumerGroup=last&subscriptionMode=all";

/// Answer of a conflating pop of a group; always 200.
async fn latest(client: &Client, queue: &str, more: &str) -> Value {
    let path = format!("/api/v1/pop/queue/{queue}?{GROUP}&conflation=true&{more}");
    let answer = client.get(&path).await.expect(200);
    assert_eq!(answer["conflation"], true, "{answer}");
    assert_eq!(answer.get("conflationConflict"), None, "{answer}");
    answer
}

fn messages(answer: &Value) -> Vec<Value> {
    answer["messages"].as_array().expect("a list").clone()
}

/// data 146, data 147, data 148, data 151, data 152: each lane yields its newest message; its ack
/// retires everything before it, what came meanwhile is next; other groups see every message.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_message_of_a_lane_is_delivered() {
    let server = TestServer::start().await;
    let client = server.client();
    let nothing = latest(&client, "q", "").await;
    assert_eq!(nothing["messages"], json!([]));
    assert_eq!(nothing["partitionsClaimed"], 0);
    assert_eq!([&nothing["partition"], &nothing["partitionId"], &nothing["leaseId"]], [""; 3]);

    for round in ["1", "2"] {
        let versions = ["x", "y"].map(|v| format!("{round}{v}"));
        let items = ["a", "b", "c"].map(|lane| versions.each_ref().map(|v| item("q", lane, v)));
        push(&client, &items.concat()).await;
    }
    let answer = latest(&client, "q", "").await;
    let held = messages(&answer);
    assert_eq!(keys(&held), ["2y"; 3], "one message a lane, without any cap of its own");
    assert_eq!(answer["partitionsClaimed"], 3);
    assert_eq!(latest(&client, "q", "").await["messages"], json!([]), "leased");
    fill(&client, "q", held[0]["partition"].as_str().expect("text"), &["meanwhile"]).await;
    let first = ack(&client, &held[0], "completed").await;
    check_entry(&first, [true, true, false, false]);
    assert_eq!(first["conflated"], 3, "three were retired undelivered");
    assert_eq!(keys(&messages(&latest(&client, "q", "").await)), ["meanwhile"]);
    check_entry(&ack(&client, &held[1], "failed").await, [true, true, false, false]);
    let again = messages(&latest(&client, "q", "").await);
    assert_eq!(keys(&again), ["2y"]);
    assert_eq!(again[0]["deliveryAttempt"], 2);

    // Budgets: lanes by `partitions`, else by `batch`.
    for (group, more) in [("b", "batch=2"), ("p", "partitions=2")] {
        let query = format!("consumerGroup={group}&subscriptionMode=all&conflation=true&{more}");
        let answer = client.get(&format!("/api/v1/pop/queue/q?{query}")).await.expect(200);
        assert_eq!(answer["partitionsClaimed"], 2, "{more}");
    }
    let path = "/api/v1/pop/queue/q?consumerGroup=plain&subscriptionMode=all&partitions=3";
    let plain = client.get(path).await.expect(200);
    assert_eq!(messages(&plain).len(), 13, "every message");
    for key in ["conflation", "conflationConflict"] {
        assert_eq!(plain.get(key), None);
    }
    server.stop().await;
}

/// data 149: the policy that the group registered with wins, and a request that disagrees is told.
#[tokio::test(flavor = "multi_thread")]
async fn the_stored_policy_wins() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b"]).await;
    for path in ["/queue/q", "/queue/q/partition/p"] {
        let query = format!("consumerGroup=full{}&subscriptionMode=all", path.len());
        client.get(&format!("/api/v1/pop{path}?{query}&batch=1")).await.expect(200);
        let path = format!("/api/v1/pop{path}?{query}&conflation=true");
        let empty = client.get(&path).await.expect(200);
        assert_eq!(empty["messages"], json!([]));
        assert_eq!((empty.get("conflation"), &empty["conflationConflict"]), (None, &json!(true)));
    }
    client.pop("q", "consumerGroup=f&subscriptionMode=all&batch=1&autoAck=true").await;
    fill(&client, "q", "p", &["c"]).await;
    let path = "/api/v1/pop/queue/q?consumerGroup=f&conflation=true";
    let full = client.get(path).await.expect(200);
    assert_eq!(keys(&messages(&full)), ["b", "c"]);
    assert_eq!((full.get("conflation"), &full["conflationConflict"]), (None, &json!(true)));
    // The reverse: a plain pop of a conflating group gets the newest only.
    latest(&client, "q", "batch=1").await;
    latest(&client, "other", "").await;
    fill(&client, "other", "p", &["a", "b"]).await;
    let path = format!("/api/v1/pop/queue/other?{GROUP}");
    let newest = client.get(&path).await.expect(200);
    assert_eq!(keys(&messages(&newest)), ["b"]);
    let told = [&newest["conflation"], &newest["conflationConflict"]];
    assert_eq!(told, [true, true]);
    server.stop().await;
}

/// data 150: last values need a group of their own and a lease, on every route.
#[tokio::test(flavor = "multi_thread")]
async fn conflation_needs_a_group_and_a_lease() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a"]).await;
    for path in ["/queue/q?", "/queue/q/partition/p?", "?namespace=q&"] {
        for query in [
            "conflation=true",
            "conflation=true&consumerGroup=",
            "conflation=true&consumerGroup=__QUEUE_MODE__",
            "conflation=true&consumerGroup=g&autoAck=true",
        ] {
            let answer = client.get(&format!("/api/v1/pop{path}{query}")).await.expect(400);
            assert_eq!(answer["success"], false, "{query}");
            assert_eq!(answer["messages"], json!([]), "{query}");
            assert!(answer["error"].is_string(), "{query}");
        }
    }
    assert_eq!(super::number(&server, "select count(*) from queen.log_groups").await, 0);
    server.stop().await;
}

/// data 146, data 147: the newest visible message is delivered, not what is held back behind it;
/// its ack retires its span also where all versions carry one id.
#[tokio::test(flavor = "multi_thread")]
async fn versions_may_share_an_id_and_wait_for_their_time() {
    let server = TestServer::start().await;
    let client = server.client();
    let options = json!({"dedupWindowSeconds": 0, "delayedProcessing": 3600});
    configure(&client, "q", options).await;
    let price = |n: i32| {
        json!({"queue": "q", "partition": "p", "transactionId": "price",
                                "payload": n})
    };
    for n in 0..3 {
        push(&client, &[price(n)]).await;
    }
    let sql = server.database.sql().await;
    sql.batch_execute("update queen.log_segments set created_at = created_at - interval '2 hours'")
        .await
        .expect("the messages are older");
    push(&client, &[price(3)]).await;
    let held = messages(&latest(&client, "q", "").await);
    assert_eq!(all(&held, "data"), [2]);
    let entry = ack(&client, &held[0], "completed").await;
    check_entry(&entry, [true, true, false, false]);
    assert_eq!(entry["conflated"], 2);
    assert_eq!(latest(&client, "q", "").await["messages"], json!([]), "held back");
    configure(&client, "q", json!({"dedupWindowSeconds": 0})).await;
    let held = messages(&latest(&client, "q/partition/p", "").await);
    assert_eq!(all(&held, "data"), [3]);
    server.stop().await;
}
