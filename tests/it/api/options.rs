//! Options of a queue, as far as push, pop and ack read them.

use serde_json::{Value, json};

use super::{ack, all, configure, delivered, fill, item, keys, number, push};
use crate::support::{TestServer, eventually};

/// data 127, data 128: configure echoes every option as it is in force.
#[tokio::test(flavor = "multi_thread")]
async fn configure_echoes_every_option() {
    let server = TestServer::start().await;
    let client = server.client();
    let defaults = json!({
        "priority": 0, "leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "maxSize": 0,
        "ttl": 3600, "delayedProcessing": 0, "windowBuffer": 0, "retentionSeconds": 0,
        "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "minPopWaitTime": 0,
        "dedupWindowSeconds": 3600, "retentionSinkHoldMaxSeconds": 604_800,
        "retentionSinkHold": "", "deadLetterQueue": true, "dlqAfterMaxRetries": true,
        "retentionEnabled": false, "encryptionEnabled": false,
    });
    let answer = configure(&client, "q", json!({})).await;
    assert_eq!(answer["options"], defaults);
    assert_eq!((&answer["queue"], &answer["partitionId"]), (&json!("q"), &Value::Null));
    assert_eq!((&answer["namespace"], &answer["task"]), (&json!(""), &json!("")));
    assert_eq!(answer.get("error"), None);
    let id = answer["queueId"].clone();

    let given = json!({"leaseTime": 7, "retryLimit": 0, "deadLetterQueue": false, "priority": 9,
        "minPopWaitTime": 90_000, "dedupWindowSeconds": -1, "encryptionEnabled": true,
        "namespace": "n", "task": "t", "ttl": null, "unknown": 1});
    let answer = configure(&client, "q", given).await;
    let mut expected = defaults.clone();
    for (key, value) in [
        ("leaseTime", json!(7)),
        ("retryLimit", json!(0)),
        ("deadLetterQueue", json!(false)),
        ("priority", json!(9)),
        ("minPopWaitTime", json!(60_000)),
        ("dedupWindowSeconds", json!(0)),
        ("encryptionEnabled", json!(true)),
    ] {
        expected[key] = value;
    }
    assert_eq!(answer["options"], expected);
    assert_eq!((&answer["namespace"], &answer["task"]), (&json!("n"), &json!("t")));
    assert_eq!(answer["queueId"], id, "the same queue");

    let below = configure(&client, "q", json!({"minPopWaitTime": -5})).await;
    assert_eq!(below["options"], defaults, "what is not named returns to its default");
    assert_eq!(number(&server, "select count(*) from queen.log_partitions").await, 0);
    server.stop().await;
}

/// data 124: with a delay nothing is delivered before its time, and everything afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_delay_holds_messages_back() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"delayedProcessing": 3600})).await;
    fill(&client, "q", "p", &["a", "b"]).await;
    for path in ["q", "q/partition/p"] {
        assert!(client.pop(path, "").await.is_empty());
        assert!(client.pop(path, "wait=true&timeout=300").await.is_empty());
    }
    // Two hours ago for one request, now for another: the delay is per message.
    let sql = server.database.sql().await;
    sql.batch_execute("update queen.log_segments set created_at = created_at - interval '2 hours'")
        .await
        .expect("the messages are older");
    fill(&client, "q", "p", &["c"]).await;
    let held = delivered(&client, "q", "").await;
    assert_eq!(keys(&held), ["a", "b"]);
    ack(&client, &held[1], "completed").await;
    assert!(client.pop("q", "").await.is_empty());

    configure(&client, "q", json!({"delayedProcessing": 1})).await;
    assert_eq!(keys(&delivered(&client, "q", "").await), ["c"]);
    fill(&client, "q", "r", &["d"]).await;
    let age = "select (extract(epoch from clock_timestamp() - max(created_at)) * 1000)::bigint
                 from queen.log_segments";
    assert_eq!(keys(&delivered(&client, "q", "").await), ["d"]);
    assert!(number(&server, age).await >= 1000);
    server.stop().await;
}

/// data 125: with a window the messages of a push come together after it, or as soon as a hundred
/// wait; none is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_collects_messages() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"windowBuffer": 3600})).await;
    let key = |i: usize| format!("{i:03}");
    let items: Vec<Value> = (0..99).map(|i| item("q", "p", &key(i))).collect();
    push(&client, &items).await;
    assert!(client.pop("q", "").await.is_empty());
    assert!(client.pop("q/partition/p", "").await.is_empty());
    fill(&client, "q", "p", &[&key(99)]).await;
    let held = client.pop("q/partition/p", "autoAck=true").await;
    assert_eq!(keys(&held), (0..100).map(key).collect::<Vec<_>>());

    configure(&client, "q", json!({"windowBuffer": 1})).await;
    fill(&client, "q", "p", &["a", "b", "c"]).await;
    let held = delivered(&client, "q", "wait=true&timeout=5000").await;
    assert_eq!(keys(&held), ["a", "b", "c"]);
    let age = "select (extract(epoch from clock_timestamp() - max(created_at)) * 1000)::bigint
                 from queen.log_segments";
    assert!(number(&server, age).await >= 1000);
    server.stop().await;
}

/// data 126: with a delay and a window the longer one decides.
#[tokio::test(flavor = "multi_thread")]
async fn the_longer_hold_decides() {
    let server = TestServer::start().await;
    let client = server.client();
    for (delay, window) in [(3600, 1), (1, 3600)] {
        let queue = format!("q{delay}");
        let options = json!({"delayedProcessing": delay, "windowBuffer": window});
        configure(&client, &queue, options).await;
        fill(&client, &queue, "p", &["a", "b"]).await;
        let age = format!(
            "select (extract(epoch from clock_timestamp() - max(s.created_at)) * 1000)::bigint
               from queen.log_segments s join queen.log_partitions p using (pid)
               join queen.queues q using (queue_no) where q.name = '{queue}'"
        );
        eventually("the shorter hold is over", async || {
            (number(&server, &age).await > 1100).then_some(())
        })
        .await;
        assert!(client.pop(&format!("{queue}/partition/p"), "").await.is_empty(), "{queue}");
        configure(&client, &queue, json!({"delayedProcessing": 1, "windowBuffer": 1})).await;
        let held = client.pop(&format!("{queue}/partition/p"), "").await;
        assert_eq!(keys(&held), ["a", "b"], "{queue}");
    }
    server.stop().await;
}

/// data 128: an under-full waiting pop is held for `minPopWaitTime`, so that it fills; a full one
/// and one that wants a single message are not, nor is the hold seen in the attempts.
#[tokio::test(flavor = "multi_thread")]
async fn an_under_full_pop_is_held_for_a_while() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"minPopWaitTime": 3000})).await;
    for (asked, query) in [(1, "batch=3"), (2, "batch=3&autoAck=true")] {
        fill(&client, "q", "p", &[&format!("a{asked}")]).await;
        let query = format!("{query}&wait=true&timeout=30000");
        let pop = client.pop("q", &query);
        let push = async {
            let line = format!("\nqueen_process_pop_requests_total {asked}\n");
            eventually("the pop has come in", async || {
                let text = client.get("/metrics/prometheus").await.text;
                text.contains(&line).then_some(())
            })
            .await;
            fill(&client, "q", "p", &[&format!("b{asked}")]).await;
        };
        let (held, ()) = tokio::join!(pop, push);
        assert_eq!(keys(&held), [format!("a{asked}"), format!("b{asked}")]);
        assert_eq!(all(&held, "deliveryAttempt"), [1, 1]);
        if asked == 1 {
            ack(&client, &held[1], "completed").await;
        }
    }
    configure(&client, "q", json!({"minPopWaitTime": 60_000})).await;
    for (query, expected) in [
        ("batch=2", ["c", "d"].as_slice()),
        ("batch=1", &["e"]),
        ("batch=2&autoAck=true", &["f", "g"]),
    ] {
        fill(&client, "q", "p", expected).await;
        let query = format!("{query}&wait=true&timeout=40000");
        let full = super::soon(client.pop("q", &query)).await;
        assert_eq!(keys(&full), expected);
        assert_eq!(full[0]["deliveryAttempt"], 1);
        if !query.contains("autoAck") {
            ack(&client, full.last().expect("some"), "completed").await;
        }
    }
    server.stop().await;
}

/// data 129, data 130: encryption changes nothing that a consumer sees, and a cursor goes on behind
/// what retention removed.
#[tokio::test(flavor = "multi_thread")]
async fn encryption_and_removal_do_not_disturb_consumers() {
    let server = TestServer::start().await;
    let client = server.client();
    for (on, key) in [(true, "a"), (false, "b"), (true, "c"), (false, "d"), (true, "e")] {
        configure(&client, "q", json!({"encryptionEnabled": on})).await;
        fill(&client, "q", "p", &[key]).await;
    }
    let held = client.pop("q", "").await;
    assert_eq!(all(&held, "data"), ["a", "b", "c", "d", "e"]);
    ack(&client, &held[0], "completed").await;
    ack(&client, &held[1], "retry").await;
    let sql = server.database.sql().await;
    sql.batch_execute("delete from queen.log_segments where first_offset < 3")
        .await
        .expect("removed");
    let held = client.pop("q", "").await;
    assert_eq!(keys(&held), ["d", "e"]);
    let entry = ack(&client, &held[1], "completed").await;
    super::check_entry(&entry, [true, true, false, false]);
    assert!(client.pop("q", "").await.is_empty());
    server.stop().await;
}
