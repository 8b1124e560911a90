//! Order inside a partition.

use std::collections::HashMap;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{ack, item, keys, push};
use crate::support::{Client, TestServer};

/// data 35, data 37: messages come in the order of their offsets, those of one request in request
/// order, and their times never run backwards.
#[tokio::test(flavor = "multi_thread")]
async fn delivery_follows_commit_and_request_order() {
    let server = TestServer::start().await;
    let producers: Vec<_> = (0..4)
        .map(|producer| {
            let client = server.client();
            tokio::spawn(async move {
                let mut stored = Vec::new();
                for round in 0..15 {
                    let key = |i| format!("{producer}-{round}-{i}");
                    let items: Vec<Value> = (0..7).map(|i| item("q", "p", &key(i))).collect();
                    let results = push(&client, &items).await;
                    let offset = |r: &Value| r["offset"].as_u64().expect("an offset");
                    let first = offset(&results[0]);
                    for (i, result) in (first..).zip(&results) {
                        assert_eq!(offset(result), i, "request order: {results:?}");
                        stored.push((i, result["message_id"].clone()));
                    }
                }
                assert!(stored.is_sorted_by_key(|(offset, _)| *offset), "commit order");
                stored
            })
        })
        .collect();
    let mut stored = Vec::new();
    for producer in producers {
        stored.extend(producer.await.expect("a producer"));
    }
    stored.sort_by_key(|(offset, _)| *offset);
    // More than one request of a thousand messages, and more than one segment.
    let many: Vec<Value> = (0..2_500).map(|i| item("q", "p", &format!("many-{i}"))).collect();
    for result in push(&server.client(), &many).await {
        stored.push((result["offset"].as_u64().expect("an offset"), result["message_id"].clone()));
    }
    let mut messages = Vec::new();
    while messages.len() < stored.len() {
        let more = server.client().pop("q", "batch=700&autoAck=true").await;
        assert!(!more.is_empty(), "{} of {}", messages.len(), stored.len());
        messages.extend(more);
    }
    for (i, (message, (offset, id))) in (0_u64..).zip(messages.iter().zip(&stored)) {
        assert_eq!((i, &message["id"]), (*offset, id));
    }
    let time = |m: &Value| m["createdAt"].as_str().expect("text").to_owned();
    assert!(messages.is_sorted_by_key(time));
    server.stop().await;
}

/// What the consumers of one group saw: the keys of each partition in order of delivery.
type Seen = Mutex<HashMap<String, Vec<String>>>;

async fn consume(client: Client, seen: &Seen, total: usize) {
    loop {
        let query = "consumerGroup=g&subscriptionMode=all&batch=3&wait=true&timeout=500";
        let messages = client.pop("q", query).await;
        {
            let mut seen = seen.lock().expect("no holder panics");
            if messages.is_empty() && seen.values().map(Vec::len).sum::<usize>() == total {
                return;
            }
            for message in &messages {
                let partition = message["partition"].as_str().expect("text").to_owned();
                seen.entry(partition)
                    .or_default()
                    .push(keys(std::slice::from_ref(message))[0].to_owned());
            }
        }
        if let Some(last) = messages.last() {
            let entry = ack(&client, last, "completed").await;
            assert_eq!(entry["success"], true, "{entry}");
        }
    }
}

/// data 36, data 52: with several consumers of one group, each partition is delivered in order and
/// each message once.
#[tokio::test(flavor = "multi_thread")]
async fn order_holds_with_several_consumers() {
    let server = TestServer::start().await;
    let client = server.client();
    let lanes = ["a", "b", "c"];
    for round in 0..10 {
        let key = |i| format!("{:03}", round * 4 + i);
        let items = lanes.iter().flat_map(|lane| (0..4).map(|i| item("q", lane, &key(i))));
        push(&client, &items.collect::<Vec<_>>()).await;
    }
    let seen = Seen::default();
    let consumer = || consume(server.client(), &seen, 120);
    tokio::join!(consumer(), consumer(), consumer(), consumer());
    let expected: Vec<String> = (0..40).map(|i| format!("{i:03}")).collect();
    let seen = seen.into_inner().expect("no holder panics");
    assert_eq!(json!(seen), json!({"a": expected, "b": expected, "c": expected}));
    server.stop().await;
}
