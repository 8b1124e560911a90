//! Sink pushes (streams section 6).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{GROUP, World, item, numbers_of, upsert, with};
use crate::support::TestServer;

/// streams P1, P2, P3, P4, P5, P6, P7, P8, P10, P11, E5, C9: what may be left out of an item, and
/// what a consumer of the sink gets.
#[tokio::test(flavor = "multi_thread")]
async fn items_take_their_defaults_and_keep_their_order() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    let given = "0198f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
    let items = json!([
        {"queue": "out.day.x", "payload": {"n": 1}},
        {"queue": "out.day.x", "partition": "b", "payload": {"n": 2}, "transactionId": "t-1"},
        {"queue": "", "payload": {"n": 90}},
        {"queue": "out.day.x", "partition": "", "data": {"n": 3}, "messageId": given},
        {"payload": {"n": 91}},
        {"queue": 5, "payload": {"n": 92}},
        "no object",
        {"queue": "second", "partition": 7, "payload": null, "data": {"n": 93}},
        {"queue": "out.day.x", "partition": null, "payload": {"n": 4}, "messageId": "zz",
         "transactionId": ""},
        {"queue": "second"},
        {"queue": "out.day.x", "partition": "b", "payload": {"n": 5}, "messageId": given,
         "traceId": given, "producerSub": "x"},
    ]);
    let answer = w.commit(&id, &json!({"push_items": items})).await;
    let results = answer["push_results"].as_array().expect("results");
    let shown: Vec<_> = results
        .iter()
        .map(|r| (r["queue"].as_str(), r["partition"].as_str(), r["status"].as_str()))
        .collect();
    let group = |queue, partition| (Some(queue), Some(partition), Some("queued"));
    let expected =
        [group("out.day.x", "Default"), group("out.day.x", "b"), group("second", "Default")];
    assert_eq!(shown, expected);
    assert!(results.iter().all(|r| r["baseOffset"] == 0), "{answer}");

    let mut by_partition: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for message in w.all("out.day.x").await {
        let partition = message["partition"].as_str().expect("a name").to_owned();
        by_partition.entry(partition).or_default().push(message);
    }
    let (first, b) = (&by_partition["Default"], &by_partition["b"]);
    assert_eq!((numbers_of(first), numbers_of(b)), (vec![1, 3, 4], vec![2, 5]));
    for message in first.iter().chain(b) {
        assert!(message["traceId"].is_null() && message["producerSub"].is_null(), "{message}");
        let id = message["id"].as_str().expect("an id");
        assert!(uuid::Uuid::try_parse(id).expect("a uuid").get_version_num() == 7, "{message}");
        if message["data"]["n"] != 2 {
            assert_eq!(message["transactionId"], id, "{message}");
        }
    }
    assert_eq!((&first[1]["id"], &b[1]["id"]), (&json!(given), &json!(given)));
    assert_eq!(b[0]["transactionId"], "t-1");
    assert_eq!(w.payloads("second").await, [Value::Null, json!({})]);
    let labels = "select namespace || '/' || task from queen.queues where name = 'out.day.x'";
    let labels: String = w.sql.query_one(labels, &[]).await.expect("a queue").get(0);
    assert_eq!(labels, "out/day");
    let next = w.commit(&id, &json!({"push_items": [item("out.day.x", "b", 6)]})).await;
    assert_eq!(next["push_results"][0]["baseOffset"], 2);
    w.stop().await;
}

/// streams P9, P14, K7, K8: messages of cycles and of pushes are one log: popped in order, acked
/// by transactionId, redelivered and dead-lettered alike; a query may feed its own source.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_message_is_like_any_other() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    for n in (2..20).step_by(3) {
        let items: Vec<Value> = (n..n + 2).map(|n| item("in", "p", json!({"n": n}))).collect();
        let answer = w.commit(&id, &json!({"push_items": items})).await;
        assert_eq!(answer["push_results"][0]["baseOffset"], n);
        w.feed("p", n + 2..n + 3).await;
    }
    let lane = w.lease("p", GROUP, "batch=1000").await;
    assert_eq!(lane.numbers(), (0..20).collect::<Vec<u64>>());
    let text = |m: &Value, name: &str| m[name].as_str().expect(name).to_owned();
    let order: Vec<_> = lane
        .messages
        .iter()
        .map(|m| {
            let at = text(m, "createdAt");
            assert!(at.ends_with('Z'), "{at}");
            let at: jiff::Timestamp = at.parse().expect("a time");
            (at.as_millisecond(), text(m, "id"))
        })
        .collect();
    assert!(order.is_sorted(), "runners sort by milliseconds and id: {order:?}");

    let ack = async |n: usize, status: &str| {
        let ack = json!({"partitionId": id, "transactionId": lane.messages[n]["transactionId"],
            "leaseId": lane.lease, "consumerGroup": GROUP, "status": status, "error": "why"});
        w.client.post("/api/v1/ack", &ack).await.expect(200)[0].clone()
    };
    assert_eq!(ack(3, "completed").await["success"], true);
    assert_eq!(ack(4, "dlq").await["dlq"], true);
    let dead = "select convert_from(payload, 'UTF8') from queen.log_dead_letters";
    let dead: String = w.sql.query_one(dead, &[]).await.expect("a dead letter").get(0);
    assert_eq!(dead, r#"{"n":4}"#);
    assert_eq!(w.lease("p", GROUP, "batch=2").await.numbers(), [5, 6]);

    let long = json!("abc".repeat(3_000));
    w.client.push("out", "pushed", std::slice::from_ref(&long)).await;
    w.commit(&id, &json!({"push_items": [item("out", "emitted", long)]})).await;
    let sizes = "select raw_bytes, octet_length(payload) from queen.log_segments
                 where raw_bytes > 9000";
    let sizes = w.sql.query(sizes, &[]).await.expect("segments");
    let [a, b] = [0, 1].map(|i| (sizes[i].get::<_, i32>(0), sizes[i].get::<_, i32>(1)));
    assert!(a == b && a.1 < 1_000, "packed alike: {a:?} {b:?}");
    w.stop().await;
}

/// streams P12, P13: duplicates leave out themselves and nothing else, also when the original came
/// by a push, by another broker, or stands in the same cycle.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_costs_only_itself() {
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let id = w.feed("p", 0..1).await;
    let ided = |txn: &str, n: usize| {
        with(item("out", "p", json!({"n": n})), &json!({"transactionId": txn}))
    };
    let push = json!({"items": [ided("a", 1), ided("b", 2)]});
    second.client().post("/api/v1/push", &push).await.expect(201);

    let more = json!({"push_items": [ided("b", 90), ided("c", 3), ided("c", 91), ided("d", 4)],
                      "state_ops": [upsert("k", &json!(1))]});
    let answer = w.commit(&id, &more).await;
    let result = &answer["push_results"][0];
    // The group's first message is the original of the duplicate.
    assert_eq!((&result["status"], &result["baseOffset"]), (&json!("queued"), &json!(1)));
    let twice = w.commit(&id, &with(more, &json!({"state_ops": [upsert("k", &json!(2))]}))).await;
    assert_eq!(twice["push_results"][0]["status"], "duplicate");
    assert_eq!(w.rows(&id).await, [("k".to_owned(), json!(2))]);
    // Another broker, which has not seen the cycles, pushes and cycles the same ids.
    let push = json!({"items": [ided("d", 92), ided("e", 5)]});
    let pushed = second.client().post("/api/v1/push", &push).await.expect(201);
    assert_eq!(
        (&pushed[0]["status"], &pushed[1]["status"]),
        (&json!("duplicate"), &json!("queued"))
    );
    let body = w.body(&id, &json!({"push_items": [ided("e", 93), ided("f", 6)]}));
    super::committed(second.client().cycle(&body).await);
    w.commit(&id, &json!({"push_items": [ided("f", 94), ided("g", 7), ided("a", 95)]})).await;
    assert_eq!(numbers_of(&w.all("out").await), [1, 2, 3, 4, 5, 6, 7]);
    second.stop().await;

    // Without a window only repeats inside one cycle collapse.
    let off = json!({"queue": "off", "options": {"dedupWindowSeconds": 0}});
    w.client.post("/api/v1/configure", &off).await.expect(200);
    let ided = |txn: &str, n: usize| with(ided(txn, n), &json!({"queue": "off"}));
    for n in [1, 3] {
        let items = [ided("x", n), ided("x", 90), ided("y", n + 1)];
        w.commit(&id, &json!({"push_items": items})).await;
    }
    assert_eq!(numbers_of(&w.all("off").await), [1, 2, 3, 4]);
    w.stop().await;
}

/// streams Y1, P15, A3: when the ack fails, nothing that the cycle made is visible.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_cycle_leaves_no_message_partition_or_queue() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    w.client.push("old", "there", &[json!({"n": 0})]).await;
    let lane = w.lease("p", GROUP, "").await;
    let stale = with(lane.done(), &json!({"leaseId": "0198f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}));
    let mut more = json!({
        "state_ops": [upsert("k", &json!(1))], "ack": stale,
        "push_items": [item("new", "a", 1), item("old", "made", 1), item("old", "there", 1),
                       item("new", "b", 1)],
    });
    let figures = "select count(*) from (
        select name from queen.queues union all select name from queen.log_partitions
        union all select first_offset::text from queen.log_segments
        union all select key from foldmq.state) all_of_it";
    let before = w.count(figures).await;
    for sinks in 0..3 {
        w.refuse(&id, &more, "lease").await;
        assert_eq!(w.count(figures).await, before, "{sinks}");
        // Without the new ones the cycle takes the path that is shared with other cycles.
        more["push_items"] = json!([item("old", "there", 1)]);
    }
    assert_eq!(
        w.count("select next_offset from queen.log_partitions where name = 'there'").await,
        1
    );
    more["ack"] = lane.done();
    let answer = w.commit(&id, &more).await;
    assert_eq!(answer["push_results"][0]["baseOffset"], 1);
    w.stop().await;
}
