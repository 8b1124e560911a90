//! Duplicates: what a transaction id means inside and outside its window.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{all, configure, fill, item, keys, push};
use crate::support::{Client, Database, TestServer, eventually};

/// `[status, message_id, offset]` of a result.
fn told(result: &Value) -> [&Value; 3] {
    [&result["status"], &result["message_id"], &result["offset"]]
}

/// Pushes one key until it is queued anew; gives the result and how many duplicates came first.
async fn queued_anew(client: &Client, key: &Value) -> (Value, usize) {
    let mut duplicates = 0;
    let result = eventually("the window passes", async || {
        let result = push(client, std::slice::from_ref(key)).await.remove(0);
        if result["status"] == "queued" {
            return Some(result);
        }
        assert_eq!(result["status"], "duplicate", "{result}");
        duplicates += 1;
        None
    })
    .await;
    (result, duplicates)
}

/// data 23, data 24, data 25, data 26, data 29: a stored key is known by its queue, partition and
/// id alone; repeats, in one request or later, report the original.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_key_reports_the_original() {
    let server = TestServer::start().await;
    let client = server.client();
    let first = push(&client, &[item("q", "p", "x"), item("q", "p", "k")]).await;
    let other = json!({"queue": "q", "partition": "p", "transactionId": "k", "payload": [2]});
    for again in [item("q", "p", "k"), other.clone()] {
        let again = push(&client, &[again]).await;
        let original = [&json!("duplicate"), &first[1]["message_id"], &json!(1)];
        assert_eq!(told(&again[0]), original);
        assert_eq!(again[0]["transaction_id"], "k");
        assert_eq!(again[0]["queueName"], "q");
    }
    // Repeats of a new key and of a stored one, among other keys, in one request.
    let n = item("q", "p", "n");
    let mixed = [n.clone(), other.clone(), n.clone(), item("q", "p", "m"), other, n];
    let mixed = push(&client, &mixed).await;
    assert_eq!(
        all(&mixed, "status"),
        ["queued", "duplicate", "duplicate", "queued", "duplicate", "duplicate"]
    );
    assert_eq!(all(&mixed, "offset"), [2, 1, 2, 3, 1, 2]);
    for repeat in [2, 5] {
        assert_eq!(mixed[repeat]["message_id"], mixed[0]["message_id"]);
    }
    for repeat in [1, 4] {
        assert_eq!(mixed[repeat]["message_id"], first[1]["message_id"]);
    }
    let messages = client.pop("q/partition/p", "").await;
    assert_eq!(keys(&messages), ["x", "k", "n", "m"]);
    assert_eq!(messages[1]["data"], "k", "the payload of the original");

    // Elsewhere the same id is another message.
    let elsewhere = push(&client, &[item("q", "r", "k"), item("s", "p", "k")]).await;
    assert_eq!(all(&elsewhere, "status"), ["queued", "queued"]);
    assert_ne!(elsewhere[0]["message_id"], first[1]["message_id"]);
    assert_eq!(client.pop("q/partition/r", "").await.len(), 1);
    assert_eq!(client.pop("s", "").await.len(), 1);
    server.stop().await;
}

/// data 27, data 30: without a window only repeats inside one request collapse.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_window_requests_do_not_know_each_other() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"dedupWindowSeconds": 0})).await;
    for round in 0..2 {
        let results = push(&client, &vec![item("q", "p", "k"); 3]).await;
        assert_eq!(all(&results, "status"), ["queued", "duplicate", "duplicate"]);
        assert_eq!(all(&results, "offset"), [round; 3]);
        assert_eq!(results[2]["message_id"], results[0]["message_id"]);
    }
    assert_eq!(keys(&client.pop("q", "").await), ["k", "k"]);
    server.stop().await;
}

/// data 28, also between brokers: of eight concurrent pushes of one key exactly one is stored.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pushes_of_one_key_store_it_once() {
    let database = Arc::new(Database::new().await);
    let servers = [TestServer::on(Arc::clone(&database)).await, TestServer::on(database).await];
    for round in 0..5 {
        let pushes: Vec<_> = (0..8)
            .map(|i| {
                let client = servers[i % 2].client();
                let items = [item("q", "p", &format!("own-{round}-{i}")), item("q", "p", "k")];
                let items = items.map(|mut item| {
                    item["partition"] = json!(format!("p{round}"));
                    item
                });
                tokio::spawn(async move { push(&client, &items).await })
            })
            .collect();
        let mut results = Vec::new();
        for push in pushes {
            let pushed = push.await.expect("a push");
            assert_eq!(pushed[0]["status"], "queued", "{pushed:?}");
            results.push(pushed[1].clone());
        }
        let queued = results.iter().filter(|r| r["status"] == "queued").count();
        let duplicate = results.iter().filter(|r| r["status"] == "duplicate").count();
        assert_eq!((queued, duplicate), (1, 7), "{results:?}");
        for result in &results {
            assert_eq!(result["message_id"], results[0]["message_id"], "{results:?}");
            assert_eq!(result["offset"], results[0]["offset"], "{results:?}");
        }
        let messages = servers[0].client().pop(&format!("q/partition/p{round}"), "").await;
        assert_eq!(messages.len(), 9);
    }
    for server in servers {
        server.stop().await;
    }
}

/// data 31: the window counts from the original's commit; duplicates do not prolong it.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_do_not_prolong_the_window() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"dedupWindowSeconds": 1})).await;
    let first = fill(&client, "q", "p", &["k"]).await;
    let (second, duplicates) = queued_anew(&client, &item("q", "p", "k")).await;
    assert!(duplicates > 0, "inside the window it was known");
    assert_ne!(second["message_id"], first[0]["message_id"]);
    assert_eq!(second["offset"], 1);
    let messages = client.pop("q", "").await;
    assert_eq!(keys(&messages), ["k", "k"]);
    let at = |i: usize| -> jiff::Timestamp {
        messages[i]["createdAt"].as_str().expect("text").parse().expect("an instant")
    };
    assert!(at(1).duration_since(at(0)) >= jiff::SignedDuration::from_secs(1), "{messages:?}");
    server.stop().await;
}

/// data 23: a window that is made longer reaches back over everything that is retained.
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_window_reaches_back() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"dedupWindowSeconds": 1})).await;
    let first = fill(&client, "q", "p", &["old"]).await;
    // The second one is stored after the window of the first has passed.
    let (tick, _) = {
        fill(&client, "q", "p", &["tick"]).await;
        queued_anew(&client, &item("q", "p", "tick")).await
    };
    assert_eq!(tick["offset"], 2);
    configure(&client, "q", json!({"dedupWindowSeconds": 3600})).await;
    let again = push(&client, &[item("q", "p", "old"), item("q", "p", "tick")]).await;
    assert_eq!(told(&again[0]), [&json!("duplicate"), &first[0]["message_id"], &json!(0)]);
    assert_eq!(told(&again[1]), [&json!("duplicate"), &tick["message_id"], &json!(2)]);
    server.stop().await;
}

/// data 32, data 33: duplicates are found on an encrypted queue too, and a deleted queue forgets
/// its keys.
#[tokio::test(flavor = "multi_thread")]
async fn encryption_keeps_keys_and_deletion_forgets_them() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"encryptionEnabled": true})).await;
    let first = fill(&client, "q", "p", &["k"]).await;
    let again = push(&client, &[item("q", "p", "k"), item("q", "p", "n")]).await;
    assert_eq!(told(&again[0]), [&json!("duplicate"), &first[0]["message_id"], &json!(0)]);
    assert_eq!(again[1]["status"], "queued");
    assert_eq!(all(&client.pop("q", "").await, "data"), ["k", "n"]);

    let deleted = client.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!(deleted["existed"], true, "{deleted}");
    let anew = push(&client, &[item("q", "p", "k")]).await;
    assert_eq!(anew[0]["status"], "queued");
    assert_eq!(anew[0]["offset"], 0);
    assert_ne!(anew[0]["message_id"], first[0]["message_id"]);
    assert_eq!(keys(&client.pop("q", "").await), ["k"]);
    server.stop().await;
}
