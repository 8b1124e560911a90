//! Pop: scope, budget and shape of an answer.

use serde_json::{Value, json};

use super::{ack, all, configure, fill, item, keys, number, push};
use crate::support::{Client, TestServer};

async fn popped(client: &Client, path: &str) -> Value {
    client.get(&format!("/api/v1/pop{path}")).await.expect(200)
}

fn messages(answer: &Value) -> &[Value] {
    answer["messages"].as_array().expect("a list")
}

/// data 38, data 39, data 46: nothing to deliver is a 204 without body and content type, whether
/// queue and partition exist or not.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_to_deliver_is_a_bare_204() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a"]).await;
    let message = client.pop("q", "").await.remove(0);
    ack(&client, &message, "completed").await;
    client.delete("/api/v1/resources/queues/gone").await.expect(200);
    for path in [
        "/queue/q",
        "/queue/q/partition/p",
        "/queue/q/partition/unknown",
        "/queue/unknown",
        "/queue/unknown2/partition/unknown",
        "/queue/gone?consumerGroup=g",
        "?namespace=nowhere",
    ] {
        let answer = client.get(&format!("/api/v1/pop{path}")).await;
        assert_eq!((answer.status, answer.text.as_str()), (204, ""), "{path}");
        assert_eq!(answer.headers.get("content-type"), None, "{path}");
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
    }
    server.stop().await;
}

/// data 40, data 41, data 42, data 43, data 44: `batch` bounds the whole call and `partitions` the
/// lanes; one lease covers all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pop_keeps_its_budgets() {
    let server = TestServer::start().await;
    let client = server.client();
    let lanes = ["a", "b", "c", "d", "e"];
    let items = (0..100).flat_map(|i| lanes.map(|lane| item("q", lane, &format!("{lane}{i:02}"))));
    let results = push(&client, &items.collect::<Vec<_>>()).await;
    assert_eq!(results.len(), 500);

    for (group, more, n, lanes) in [
        ("ten", "batch=10&partitions=5", 10, 1),
        ("spill", "batch=250&partitions=5", 250, 3),
        ("cap", "batch=250&partitions=2", 200, 2),
        ("uncapped", "batch=450&partitions=0", 450, 5),
        ("plain", "", 100, 1),
        ("plain-batch", "batch=150", 100, 1),
        ("one", "batch=0&partitions=5", 1, 1),
        ("minus", "batch=-4", 1, 1),
        ("autopilot", "autopilot=true", 100, 1),
        ("autopilot-batch", "autopilot=true&batch=120", 100, 1),
    ] {
        let query = format!("?consumerGroup={group}&subscriptionMode=all&{more}");
        let answer = popped(&client, &format!("/queue/q{query}")).await;
        let found = messages(&answer);
        assert_eq!(found.len(), n, "{group}");
        assert_eq!(answer["partitionsClaimed"], lanes, "{group}");
        let lease = answer["leaseId"].as_str().expect("text");
        assert_eq!(lease.parse::<uuid::Uuid>().map(|id| id.get_version_num()), Ok(7), "{group}");
        assert!(found.iter().all(|m| m["leaseId"] == lease), "{group}");
        assert_eq!(answer["partition"], found[0]["partition"], "{group}");
        assert_eq!(answer["partitionId"], found[0]["partitionId"], "{group}");
        let mut ids: Vec<&Value> = all(found, "partitionId");
        ids.dedup();
        assert_eq!(ids.len(), lanes, "partition by partition: {group}");
        // Each lane starts at its beginning and is in order; the key names the lane.
        for run in found.chunk_by(|a, b| a["partitionId"] == b["partitionId"]) {
            let lane = run[0]["partition"].as_str().expect("text");
            let expected: Vec<String> = (0..run.len()).map(|i| format!("{lane}{i:02}")).collect();
            assert_eq!(keys(run), expected, "{group}");
        }
        let chosen = match more {
            "autopilot=true" => json!({"partitions": 1, "batch": 100, "waitMs": 100}),
            "autopilot=true&batch=120" => json!({"partitions": 1, "batch": 120, "waitMs": 100}),
            _ => Value::Null,
        };
        assert_eq!(answer["autopilot"], chosen, "{group}");
    }
    server.stop().await;
}

/// data 45, data 49: the pinned route stays in its partition, and discovery names no queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_pop_stays_in_its_partition() {
    let server = TestServer::start().await;
    let client = server.client();
    let items = ["a", "b", "a", "b"].map(|lane| {
        json!({"queue": "q", "partition": lane,
                                                        "payload": lane})
    });
    push(&client, &items).await;
    let answer = popped(&client, "/queue/q/partition/b?partitions=5&batch=50").await;
    assert_eq!(all(messages(&answer), "data"), ["b", "b"]);
    assert_eq!((&answer["queue"], &answer["partition"]), (&json!("q"), &json!("b")));
    assert_eq!(answer["partitionsClaimed"], 1);
    assert_eq!(client.get("/api/v1/pop/queue/q/partition/b").await.status, 204, "leased");
    let answer = popped(&client, "/queue/q/partition/a?batch=1").await;
    assert_eq!(all(messages(&answer), "data"), ["a"]);
    server.stop().await;
}

/// data 47, data 48, data 49: discovery looks at exactly the queues with the given labels.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_matches_namespace_and_task() {
    let server = TestServer::start().await;
    let client = server.client();
    for (queue, namespace, task) in
        [("1", "n", "t"), ("2", "n", "u"), ("3", "m", "t"), ("4", "", "")]
    {
        configure(&client, queue, json!({"namespace": namespace, "task": task})).await;
        fill(&client, queue, "p", &[queue]).await;
    }
    for (query, expected) in [
        ("namespace=n", vec!["1", "2"]),
        ("task=t", vec!["1", "3"]),
        ("namespace=n&task=u", vec!["2"]),
        ("namespace=&task=u", vec!["2"]),
        ("namespace=N", vec![]),
        ("namespace=m&task=u", vec![]),
    ] {
        let group = query.replace(['=', '&'], "-");
        let query = format!("?{query}&consumerGroup={group}&subscriptionMode=all&partitions=9");
        let answer = client.get(&format!("/api/v1/pop{query}")).await;
        if expected.is_empty() {
            assert_eq!(answer.status, 204, "{query}");
            continue;
        }
        let answer = answer.expect(200);
        let mut found = keys(messages(&answer));
        found.sort_unstable();
        assert_eq!(found, expected, "{query}");
        assert_eq!(answer["queue"], "", "{query}");
        assert_eq!(answer["partitionsClaimed"], expected.len(), "{query}");
    }
    for query in ["", "?namespace=", "?namespace=&task="] {
        let answer = client.get(&format!("/api/v1/pop{query}")).await.expect(400);
        assert_eq!((&answer["success"], &answer["messages"]), (&json!(false), &json!([])));
        assert!(answer["error"].is_string(), "{answer}");
    }
    assert_eq!(number(&server, "select count(*) from queen.queues").await, 4, "it makes none");
    server.stop().await;
}

/// data 50: a failing store is a 5xx and never an empty answer; afterwards everything is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_is_no_empty_answer() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q.t", "p", &["a"]).await;
    let sql = server.database.sql().await;
    for (broken, whole) in [("log_segments", "gone"), ("gone", "log_segments")] {
        sql.batch_execute(&format!("alter table queen.{broken} rename to {whole}"))
            .await
            .expect("renamed");
        for path in ["/queue/q.t", "/queue/q.t/partition/p", "?namespace=q"] {
            let path = format!("/api/v1/pop{path}{}", if path.contains('?') { "&" } else { "?" });
            let answer = client
                .get(&format!(
                    "{path}autoAck=true&consumerGroup={}&subscriptionMode=all",
                    path.len()
                ))
                .await;
            if whole == "gone" {
                assert!(answer.status >= 500, "{path}: {} {}", answer.status, answer.text);
                assert_eq!(answer.body["success"], false, "{path}");
                assert!(!answer.text.contains("log_segments"), "causes are not shown");
            } else {
                assert_eq!(messages(&answer.expect(200)).len(), 1, "{path}");
            }
        }
    }
    server.stop().await;
}

/// data 51: a parameter that does not parse is a 400, and claims nothing.
#[tokio::test(flavor = "multi_thread")]
async fn unparseable_parameters_are_refused() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q.t", "p", &["a"]).await;
    for query in [
        "batch=ten",
        "batch=",
        "batch=1.5",
        "partitions=x",
        "timeout=1s",
        "leaseSeconds=x",
        "wait=1",
        "wait=True",
        "autoAck=yes",
        "conflation=",
        "autopilot=on",
    ] {
        for path in ["/queue/q.t?", "/queue/q.t/partition/p?", "?namespace=q&"] {
            let answer = client.get(&format!("/api/v1/pop{path}{query}")).await;
            let answer = answer.expect(400);
            let name = query.split('=').next().expect("a name");
            assert!(answer["error"].as_str().is_some_and(|e| e.contains(name)), "{answer}");
            assert_eq!(answer["success"], false, "{answer}");
            assert_eq!(answer["messages"], json!([]), "{answer}");
        }
    }
    let messages = client.pop("q.t", "nonsense=x&batch=1").await;
    assert_eq!(messages[0]["deliveryAttempt"], 1);
    server.stop().await;
}

/// data 52, data 53, data 54: without a group the queue mode is the group, by whatever spelling,
/// and a leased message is nobody else's.
#[tokio::test(flavor = "multi_thread")]
async fn queue_mode_is_a_group_like_any_other() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a"]).await;
    fill(&client, "q", "r", &["b"]).await;
    let mut found = Vec::new();
    for query in ["", "?consumerGroup=__QUEUE_MODE__"] {
        let answer = popped(&client, &format!("/queue/q{query}")).await;
        assert_eq!(answer["consumerGroup"], "__QUEUE_MODE__");
        assert_eq!(messages(&answer)[0]["consumerGroup"], "__QUEUE_MODE__");
        found.extend(messages(&answer).to_vec());
    }
    found.sort_by_key(|m| m["data"].to_string());
    assert_eq!(keys(&found), ["a", "b"], "each once");
    for query in ["", "consumerGroup=", "consumerGroup=__QUEUE_MODE__&subscriptionMode=new"] {
        assert!(client.pop("q", query).await.is_empty(), "{query}");
    }
    server.stop().await;
}
