//! Long polls are woken by what happens on another broker.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{Brokers, age_ms, parked};
use crate::support::{Client, guest, tell};

const ROUNDS: usize = 10;
/// Longest time from a commit to its delivery, ms; a sweep would take up to five seconds.
const LATE_MS: i64 = 2_000;

/// A long poll by a group of its own; gives the age of the message that it brought.
async fn poll(client: &Client, queue: &str, group: &str) -> i64 {
    let path = format!(
        "/api/v1/pop/queue/{queue}?wait=true&timeout=20000&autoAck=true&consumerGroup={group}\
         &subscriptionMode=all"
    );
    let answer = client.get(&path).await.expect(200);
    let messages = answer["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 1, "{answer}");
    age_ms(&messages[0])
}

/// Runs `act` while a poll waits on each broker; gives the ages of what they brought.
async fn woken(brokers: &Brokers, queue: &str, act: impl AsyncFn(usize)) -> Vec<i64> {
    let mut ages = Vec::new();
    for round in 0..ROUNDS {
        let polls = brokers
            .clients
            .iter()
            .enumerate()
            .map(|(i, client)| async move { poll(client, queue, &format!("g{i}")).await });
        let acting = async {
            for client in &brokers.clients {
                parked(client, queue, 1).await;
            }
            act(round).await;
        };
        let (got, ()) = tokio::join!(join_all(polls), acting);
        ages.extend(got);
    }
    ages
}

fn check(what: &str, mut ages: Vec<i64>) {
    ages.sort_unstable();
    let (median, longest) = (ages[ages.len() / 2], ages[ages.len() - 1]);
    tell(&format!("{what}: from commit to delivery {median} ms, at most {longest} ms"));
    assert!(longest < LATE_MS, "{what}: {ages:?}");
}

/// A push, a cycle of an outside worker, and a cycle of a hosted fold wake the polls that wait at
/// every broker.
#[tokio::test(flavor = "multi_thread")]
async fn polls_are_woken_by_other_brokers() {
    let brokers = Brokers::start(3).await;
    let push = async |round: usize| {
        brokers.client(round).push("pushed", "p", &[json!(round)]).await;
    };
    check("push", woken(&brokers, "pushed", push).await);

    let first = brokers.client(0);
    let query = first.register("outside", "source").await;
    first.push("source", "p", &[json!(0)]).await;
    let source = first.pop("source", "consumerGroup=x&subscriptionMode=all").await.remove(0);
    let cycle = async |round: usize| {
        let body = json!({"query_id": query, "partition_id": source["partitionId"],
            "push_items": [{"queue": "cycled", "partition": "p", "payload": round}]});
        let done = brokers.client(round).cycle(&body).await;
        assert_eq!(done["success"], true, "{done}");
    };
    check("cycle of an outside worker", woken(&brokers, "cycled", cycle).await);

    let params = json!({"window_ms": 1_000, "event_time": true, "sink": "folded"});
    guest::host_probe(first, "hosted", "flow", json!({"params": params})).await;
    let at = |n: usize| json!({"key": "k", "n": 1, "at": n * 1_000});
    first.push("flow", "p", &[at(1)]).await;
    let fold = async |round: usize| {
        // Closes the window before it.
        brokers.client(round).push("flow", "p", &[at(round + 2)]).await;
    };
    check("cycle of a hosted fold", woken(&brokers, "folded", fold).await);
    brokers.stop().await;
}

/// FB-92: the pop that waits on a sink gets the window that an idle flush closes, at any broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_wakes_who_waits_on_the_sink() {
    let brokers = Brokers::start(2).await;
    let params = json!({"window_ms": 1_000, "event_time": true, "idle_ms": 200, "sink": "late"});
    guest::host_probe(brokers.client(0), "idle", "flow", json!({"params": params})).await;
    let act = async |round: usize| {
        let message: Value =
            json!({"key": "k", "n": 1, "at": jiff::Timestamp::now().as_millisecond()});
        // A partition of its own: the flush of the last one has moved its watermark.
        brokers.client(round).push("flow", &format!("p{round}"), &[message]).await;
    };
    check("idle flush", woken(&brokers, "late", act).await);
    brokers.stop().await;
}
