//! Completed acks: they commit a cursor, under a lease or late.

use serde_json::{Value, json};

use super::{
    ack, ack_all, ack_body, ack_of, check_entry, check_refused, configure, delivered, fill, item,
    keys, leases_over, push,
};
use crate::support::{Client, TestServer};

const ALL: &str = "subscriptionMode=all";
const DONE: [bool; 4] = [true, true, false, false];
const PARTLY: [bool; 4] = [true, false, false, false];
const NOOP: [bool; 4] = [true, false, false, true];

fn without_lease(message: &Value) -> Value {
    let mut ack = ack_of(message, "completed");
    ack["leaseId"] = Value::Null;
    ack
}

/// data 76, data 77, data 79, data 81, data 82, data 86: an ack completes everything before it;
/// the lease lives until the end of the batch is acked, and what it settled cannot be acked twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_completes_everything_before_it() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b", "c", "d", "e", "f"]).await;
    let held = client.pop("q", "batch=5").await;
    assert_eq!(keys(&held), ["a", "b", "c", "d", "e"]);
    let second = ack(&client, &held[1], "completed").await;
    check_entry(&second, PARTLY);
    assert_eq!(
        second.as_object().map(|e| e.keys().map(String::as_str).collect::<Vec<_>>()),
        Some(vec!["dlq", "error", "index", "leaseReleased", "noop", "success", "transactionId"])
    );
    assert!(client.pop("q", "").await.is_empty(), "the rest is leased");
    for settled in [0, 1] {
        check_entry(&ack(&client, &held[settled], "completed").await, NOOP);
    }
    check_entry(&ack(&client, &held[3], "completed").await, PARTLY);
    assert!(client.pop("q", "").await.is_empty(), "the end of the batch is leased");
    check_entry(&ack(&client, &held[4], "completed").await, DONE);
    check_refused(&ack(&client, &held[4], "completed").await, "lease");
    assert_eq!(keys(&client.pop("q", "").await), ["f"]);

    fill(&client, "r", "p", &["a", "b", "c"]).await;
    let held = client.pop("r", "").await;
    let acks = held.iter().map(|m| ack_of(m, "completed")).collect::<Vec<_>>();
    for entry in ack_all(&client, &acks).await {
        check_entry(&entry, DONE);
    }
    for entry in ack_all(&client, &acks).await {
        check_refused(&entry, "lease");
    }
    fill(&client, "r", "p", &["d"]).await;
    assert_eq!(keys(&client.pop("r", "").await), ["d"]);
    server.stop().await;
}

/// data 78, data 84, data 85: after the end of a lease only what stands above the highest acked
/// message comes again; its id acks nothing any more, an ack without one still does.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_ack_needs_no_lease() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b", "c", "d"]).await;
    let first = client.pop("q", "leaseSeconds=1").await;
    check_entry(&ack(&client, &first[1], "completed").await, PARTLY);
    let second = delivered(&client, "q", "leaseSeconds=1").await;
    assert_eq!(keys(&second), ["c", "d"]);
    check_refused(&ack(&client, &first[3], "completed").await, "lease");
    let third = delivered(&client, "q", "leaseSeconds=1").await;
    assert_eq!(keys(&third), ["c", "d"], "a foreign lease moves nothing");
    for lease in ["01994c11-0c22-7d90-9f31-5b7a6c8d9e0f", "no-uuid"] {
        let mut foreign = ack_of(&third[0], "completed");
        foreign["leaseId"] = json!(lease);
        check_refused(&ack_body(&client, &foreign).await, "lease");
    }
    // Without a lease the same ack counts, whoever holds what, also after the expiry.
    check_entry(&ack_body(&client, &without_lease(&second[0])).await, PARTLY);
    let fourth = delivered(&client, "q", "leaseSeconds=1").await;
    assert_eq!(keys(&fourth), ["d"]);
    leases_over(&server).await;
    check_refused(&ack(&client, &fourth[0], "completed").await, "lease");
    check_entry(&ack_body(&client, &without_lease(&fourth[0])).await, DONE);
    fill(&client, "q", "p", &["e"]).await;
    assert_eq!(keys(&client.pop("q", "").await), ["e"]);
    server.stop().await;
}

/// data 80, data 90: acks of several partitions in one call are settled each on its own, one
/// result an item in request order.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_one_call_do_not_touch_each_other() {
    let server = TestServer::start().await;
    let client = server.client();
    let items = ["a", "b", "c"].map(|lane| [item("q", lane, lane), item("q", lane, "2")]);
    push(&client, &items.concat()).await;
    let held = client.pop("q", "partitions=3").await;
    let of = |lane: &str, i: usize| {
        let mine: Vec<&Value> = held.iter().filter(|m| m["partition"] == lane).collect();
        assert_eq!(mine.len(), 2);
        ack_of(mine[i], "completed")
    };
    let mut malformed = of("a", 0);
    malformed["partitionId"] = json!("no-uuid");
    let mut unknown = of("a", 0);
    unknown["partitionId"] = json!("5d0c6a52-1f0e-4f4f-9a63-0a8e5b1c2d3e");
    let mut foreign = of("c", 1);
    foreign["leaseId"] = json!("01994c11-0c22-7d90-9f31-5b7a6c8d9e0f");
    let acks =
        [foreign, of("a", 1), malformed, of("b", 0), unknown, of("a", 0), json!("no object")];
    let body = json!({"acknowledgments": acks});
    let entries = client.post("/api/v1/ack/batch", &body).await.expect(200);
    let entries = entries.as_array().expect("a list");
    assert_eq!(entries.len(), 7);
    for (i, entry) in entries.iter().enumerate() {
        assert_eq!(entry["index"], i);
    }
    assert_eq!(keys(entries), ["2", "2", "a", "b", "a", "a", ""]);
    check_refused(&entries[0], "lease");
    check_entry(&entries[1], DONE);
    check_refused(&entries[2], "partitionId");
    check_entry(&entries[3], PARTLY);
    check_refused(&entries[4], "consumer not found");
    check_entry(&entries[5], DONE);
    check_refused(&entries[6], "partitionId");
    // Lane a is free, b and c are still held to their ends.
    fill(&client, "q", "a", &["3"]).await;
    assert_eq!(keys(&client.pop("q", "partitions=3").await), ["3"]);
    check_entry(&ack_body(&client, &of("b", 1)).await, DONE);
    check_entry(&ack_body(&client, &of("c", 1)).await, DONE);
    for empty in [json!({}), json!({"acknowledgments": []}), json!({"acknowledgments": null})] {
        let answer = client.post("/api/v1/ack/batch", &empty).await.expect(200);
        assert_eq!(answer, json!([]));
    }
    server.stop().await;
}

/// data 83, data 89: an ack moves the cursor of its own group only, and a group without a cursor
/// or a deleted queue refuses it.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_moves_only_its_own_group() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b"]).await;
    let pop = |client: &Client, group: &str| {
        let (client, query) = (client.clone(), format!("consumerGroup={group}&{ALL}"));
        async move { client.pop("q", &query).await }
    };
    let g = pop(&client, "g").await;
    let h = pop(&client, "h").await;
    check_entry(&ack(&client, &g[1], "completed").await, DONE);
    check_entry(&ack(&client, &h[0], "completed").await, PARTLY);
    let mut nobody = ack_of(&h[1], "completed");
    nobody["leaseId"] = Value::Null;
    for group in [json!("never-seen"), Value::Null, json!("")] {
        nobody["consumerGroup"] = group;
        check_refused(&ack_body(&client, &nobody).await, "consumer not found");
    }
    // The batch route reads the group at the top only.
    let body = json!({"acknowledgments": [ack_of(&h[1], "completed")]});
    let entries = client.post("/api/v1/ack/batch", &body).await.expect(200);
    check_refused(&entries[0], "consumer not found");
    assert!(pop(&client, "h").await.is_empty(), "still leased");
    check_entry(&ack(&client, &h[1], "completed").await, DONE);
    assert_eq!(keys(&client.pop("q", "").await), ["a", "b"], "the queue mode saw nothing yet");
    client.delete("/api/v1/resources/queues/q").await.expect(200);
    for status in ["completed", "failed"] {
        check_refused(&ack(&client, &h[1], status).await, "consumer not found");
    }
    server.stop().await;
}

/// data 87, data 88, data 91: what is not in the leased batch does not resolve, for any status, and
/// costs the lease nothing; all of it holds without duplicate detection too.
#[tokio::test(flavor = "multi_thread")]
async fn only_messages_of_the_batch_resolve() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "off", json!({"dedupWindowSeconds": 0})).await;
    for queue in ["q", "off"] {
        let pushed = json!({"queue": queue, "partition": "p", "payload": 1});
        let minted = push(&client, &[pushed]).await[0]["transaction_id"].clone();
        fill(&client, queue, "p", &["b", "above"]).await;
        let held = client.pop(queue, "batch=2").await;
        assert_eq!(held[0]["transactionId"], minted);
        for stranger in ["never-pushed", "", "above"] {
            for status in ["completed", "failed", "retry", "dlq"] {
                let mut ack = ack_of(&held[1], status);
                ack["transactionId"] = json!(stranger);
                check_refused(&ack_body(&client, &ack).await, "unresolv");
                ack["leaseId"] = Value::Null;
                check_refused(&ack_body(&client, &ack).await, "unresolv");
            }
        }
        assert!(client.pop(queue, "").await.is_empty(), "{queue}: the lease lives");
        check_entry(&ack(&client, &held[0], "completed").await, PARTLY);
        check_entry(&ack(&client, &held[1], "completed").await, DONE);
        assert_eq!(keys(&client.pop(queue, "").await), ["above"]);
    }
    // Of two messages with one id the lower one is meant while it is outstanding.
    for _ in 0..2 {
        fill(&client, "off", "twins", &["k"]).await;
    }
    let held = client.pop("off/partition/twins", "").await;
    assert_eq!(keys(&held), ["k", "k"]);
    check_entry(&ack(&client, &held[0], "completed").await, PARTLY);
    check_entry(&ack(&client, &held[1], "completed").await, DONE);
    server.stop().await;
}
