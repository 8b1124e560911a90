//! The example feed over HTTP, and the check of its windows.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, eventually};

const FEED: &[u8] = include_bytes!("../../../examples/flights/data/flights-2013-01.ndjson.gz");
const WINDOWS: &str = include_str!("../../../examples/flights/data/flights-2013-01.hourly.csv");

/// Windows of the feed: (origin, start) to (count, sum, min, max).
pub(crate) type Windows = BTreeMap<(String, String), [i64; 4]>;

/// Push items of the feed in its order, each with its transaction id.
pub(crate) fn items() -> Vec<Value> {
    let lines = BufReader::new(flate2::read::GzDecoder::new(FEED)).lines();
    lines
        .map(|line| {
            let payload: Value = serde_json::from_str(&line.expect("text")).expect("JSON");
            json!({"queue": "flights", "partition": payload["origin"],
                   "transactionId": payload["id"], "payload": payload})
        })
        .collect()
}

/// What the feed must give.
pub(crate) fn expected() -> Windows {
    WINDOWS
        .lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |at: usize| cells[at].parse().expect("a number");
            let key = (cells[0].to_owned(), cells[1].to_owned());
            (key, [number(2), number(3), number(4), number(5)])
        })
        .collect()
}

/// Pushes a chunk until the broker says that all of it is stored: a lost answer is asked again.
pub(crate) async fn push_surely(client: &Client, items: &[Value]) {
    let body = json!({"items": items}).to_string();
    eventually("a chunk is stored", async || {
        let request = client.request(reqwest::Method::POST, "/api/v1/push").body(body.clone());
        let answer = client.try_send(request.timeout(Duration::from_secs(10))).await.ok()?;
        let stored = |item: &Value| item["status"] == "queued" || item["status"] == "duplicate";
        (answer.status == 201 && answer.body.as_array()?.iter().all(stored)).then_some(())
    })
    .await;
}

/// Waits until the query has folded everything, and says that the feed has ended.
pub(crate) async fn finish(client: &Client, query: &str) -> Value {
    let path = format!("/streams/v1/queries/{query}");
    eventually("the query has folded everything", async || {
        let answer = client.try_send(client.request(reqwest::Method::GET, &path)).await.ok()?;
        (answer.status == 200 && answer.body["lag_messages"] == 0).then_some(())
    })
    .await;
    eventually("the open windows are flushed", async || {
        let flush = client.request(reqwest::Method::POST, &format!("{path}/flush")).body("{}");
        client.try_send(flush).await.ok().filter(|answer| answer.status == 200)
    })
    .await;
    client.status(query).await
}

/// Everything on the sink queue, read by a group of its own; fails on a window that comes twice.
pub(crate) async fn windows(client: &Client, group: &str) -> Windows {
    let mut windows = Windows::new();
    let query =
        format!("batch=1000&partitions=8&autoAck=true&consumerGroup={group}&subscriptionMode=all");
    loop {
        let messages = client.pop("flights.hourly", &query).await;
        if messages.is_empty() {
            return windows;
        }
        for message in messages {
            let data = &message["data"];
            let text = |name: &str| data[name].as_str().expect(name).to_owned();
            let number = |name: &str| data[name].as_i64().expect(name);
            let key = (text("origin"), text("window_start"));
            let figures = [
                number("count"),
                number("sum_dep_delay"),
                number("min_dep_delay"),
                number("max_dep_delay"),
            ];
            assert!(text("window_end") > text("window_start"));
            let before = windows.insert(key.clone(), figures);
            assert_eq!(before, None, "window {key:?} came twice");
        }
    }
}

/// Checks that the sink holds exactly the windows of the feed.
pub(crate) async fn check(client: &Client, query: &str) -> Value {
    let status = finish(client, query).await;
    let found = windows(client, "check").await;
    let expected = expected();
    for (key, figures) in &expected {
        assert_eq!(found.get(key), Some(figures), "window {key:?}: {status}");
    }
    assert_eq!(found.len(), expected.len(), "windows that the feed does not give");
    assert_eq!(status["tallies"]["cancelled"], 521, "{status}");
    assert_eq!(status["dead_letters"], 0, "{status}");
    status
}
