//! What the broker does around a cycle's transaction (streams section 9).

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{GROUP, World, item, upsert, with};
use crate::support::{Client, TestServer, eventually};

async fn parked(client: &Client, queue: &str, group: &str) -> Vec<Value> {
    let query = format!("consumerGroup={group}&subscriptionMode=all&wait=true&timeout=30000");
    client.pop(queue, &query).await
}

/// Waits until a server holds this many parked pops on a queue.
async fn parks(client: &Client, queue: &str, n: usize) {
    let line = format!("queen_parked_long_polls{{queue=\"{queue}\"}} {n}");
    eventually("pops are parked", async || {
        client.get("/metrics/prometheus").await.text.contains(&line).then_some(())
    })
    .await;
}

/// streams B5: what a cycle emits reaches parked pops at once, on this broker and on another one,
/// whether or not the sink existed.
#[tokio::test(flavor = "multi_thread")]
async fn emits_wake_parked_pops_on_every_broker() {
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let id = w.feed("p", 0..1).await;
    for (n, popper) in [w.client.clone(), second.client()].into_iter().enumerate() {
        let mut fastest = Duration::MAX;
        for round in 0..4 {
            // The queue exists by its pop; every other emit makes a partition.
            let cycle = async {
                parks(&popper, "out", 1).await;
                let partition = format!("{n}{}", round / 2);
                let sent = Instant::now();
                w.commit(&id, &json!({"push_items": [item("out", &partition, round)]})).await;
                sent
            };
            let (found, sent) = tokio::join!(parked(&popper, "out", "sink"), cycle);
            fastest = fastest.min(sent.elapsed());
            assert_eq!(found.len(), 1);
            assert_eq!(found[0]["data"], round);
            let ack = json!({"partitionId": found[0]["partitionId"], "consumerGroup": "sink",
                "leaseId": found[0]["leaseId"], "transactionId": found[0]["transactionId"]});
            popper.post("/api/v1/ack", &ack).await.expect(200);
            parks(&popper, "out", 0).await;
        }
        assert!(fastest < Duration::from_secs(1), "the sweep alone takes longer: {fastest:?}");
    }
    second.stop().await;
    w.stop().await;
}

/// streams B6, A12: an ack that ends the lease wakes who waits for the source partition, on every
/// broker; a refused cycle and a retained lease give nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_released_partition_is_claimable_at_once() {
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let id = w.feed("p", 0..4).await;
    let mut next = 4;
    for (popper, status) in [
        (w.client.clone(), "completed"),
        (second.client(), "completed"),
        (w.client.clone(), "failed"),
        (second.client(), "failed"),
    ] {
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            let lane = w.lease("p", GROUP, "batch=2").await;
            // They came while the partition was leased.
            w.feed("p", next..next + 2).await;
            next += 2;
            let cycle = async {
                parks(&popper, "in", 1).await;
                let stale = with(lane.done(), &json!({"leaseId": w.query}));
                w.refuse(&id, &json!({"ack": stale}), "lease").await;
                w.commit(&id, &json!({"ack": lane.ack(1), "release_lease": false})).await;
                assert!(!w.claimable("p", GROUP).await);
                let sent = Instant::now();
                let ack = with(lane.done(), &json!({"status": status}));
                w.commit(&id, &json!({"ack": ack})).await;
                sent
            };
            let (found, sent) = tokio::join!(parked(&popper, "in", GROUP), cycle);
            fastest = fastest.min(sent.elapsed());
            let first = lane.numbers()[0] + if status == "completed" { 2 } else { 1 };
            assert_eq!(found[0]["data"]["n"], first);
            parks(&popper, "in", 0).await;
            let ack = json!({"leaseId": found[0]["leaseId"], "status": "failed"});
            w.commit(&id, &json!({"ack": ack})).await;
        }
        assert!(fastest < Duration::from_secs(1), "the lease takes longer: {fastest:?}");
    }
    second.stop().await;
    w.stop().await;
}

/// streams B8, B9, B10: counters after each kind of cycle.
#[tokio::test(flavor = "multi_thread")]
async fn counters_follow_what_was_committed() {
    let w = World::start().await;
    let id = w.feed("p", 0..20).await;
    let figures = async || {
        let text = w.client.get("/metrics/prometheus").await.text;
        let figure = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let line = line.unwrap_or_else(|| panic!("{name}: {text}"));
            line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a number")
        };
        [
            figure("queen_process_push_requests_total"),
            figure("queen_process_push_messages_total"),
            figure("queen_process_ack_messages_total"),
            figure("foldmq_ack_failed_total"),
        ]
    };
    assert_eq!(figures().await, [1, 20, 0, 0]);
    let lane = w.lease("p", GROUP, "batch=10").await;
    let ops = json!([upsert("k", &json!(1))]);
    let twice = with(item("out", "a", 1), &json!({"transactionId": "once"}));
    let items = json!([item("out", "a", 1), twice, twice, item("out", "b", 1)]);
    w.commit(&id, &json!({"state_ops": ops})).await;
    assert_eq!(figures().await, [1, 20, 0, 0], "state alone is no push");
    let stale = with(lane.done(), &json!({"leaseId": w.query}));
    w.refuse(&id, &json!({"push_items": items, "ack": stale}), "lease").await;
    assert_eq!(figures().await, [1, 20, 0, 0], "a refused cycle counts nothing");
    w.commit(&id, &json!({"push_items": items})).await;
    assert_eq!(figures().await, [2, 23, 0, 0], "one request, the stored messages");
    w.commit(&id, &json!({"ack": lane.ack(4), "release_lease": false})).await;
    assert_eq!(figures().await, [2, 23, 4, 0]);
    let nack = with(lane.done(), &json!({"status": "failed", "count": 6}));
    w.commit(&id, &json!({"ack": nack, "push_items": [item("out", "a", 2)]})).await;
    assert_eq!(figures().await, [3, 24, 4, 6], "a nack counts what it asked for");
    let lane = w.lease("p", GROUP, "batch=10").await;
    w.commit(&id, &json!({"ack": with(lane.done(), &json!({"count": 7}))})).await;
    assert_eq!(figures().await, [3, 24, 11, 6]);
    w.stop().await;
}
