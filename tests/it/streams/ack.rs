//! What the ack does to cursor and lease (streams section 7).

use serde_json::{Value, json};

use super::{GROUP, World, item, numbers_of, upsert, with};
use crate::support::eventually;

const FOREIGN: &str = "0198f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f";

fn result(count: u64, released: bool) -> Value {
    json!({"success": true, "count": count, "lease_released": released, "dlq": false})
}

/// streams A7, A8, E6: an ok ack ends the lease at `batch_end` whatever its count, and leaves the
/// cursor that an ordinary ack of the whole batch leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_ack_commits_the_recorded_batch() {
    let w = World::start().await;
    let id = w.feed("p", 0..20).await;
    let ordinary = w.lease("p", "plain", "batch=5").await;
    let acks: Vec<Value> = ordinary
        .messages
        .iter()
        .map(|m| {
            json!({"transactionId": m["transactionId"], "partitionId": id,
                   "leaseId": ordinary.lease, "status": "completed"})
        })
        .collect();
    let acks = json!({"consumerGroup": "plain", "acknowledgments": acks});
    w.client.post("/api/v1/ack/batch", &acks).await.expect(200);

    let words = [Some("completed"), Some("success"), Some("acked"), Some("ok"), None];
    for (n, word) in (0..).zip(words) {
        let group = format!("g{n}");
        let lane = w.lease("p", &group, "batch=5").await;
        assert_eq!(w.cursor(&id, &group).await["batch_end"], 4);
        let mut ack = lane.done();
        match word {
            Some(word) => ack["status"] = json!(word),
            None => drop(ack.as_object_mut().expect("an object").remove("status")),
        }
        let answer = w.commit(&id, &json!({"consumer_group": group, "ack": ack})).await;
        assert_eq!(answer["ack_result"], result(5, true), "{word:?}");
        let mut cursor = w.cursor(&id, &group).await;
        assert_eq!((&cursor["attempt"], &cursor["attempt_offset"]), (&json!(0), &json!(-1)));
        // Telemetry of deliveries is the one thing that an ordinary ack keeps.
        let plain = w.cursor(&id, "plain").await;
        cursor = with(
            cursor,
            &json!({"attempt": plain["attempt"],
                                      "attempt_offset": plain["attempt_offset"]}),
        );
        assert_eq!(cursor, plain, "{word:?}");
        assert_eq!(w.lease("p", &group, "batch=2").await.numbers(), [5, 6], "claimable at once");
    }

    // The count is a report, not a place; null and other types read as absent.
    for (n, (count, shown)) in (0..).zip([
        (json!(1), 1),
        (json!(900), 900),
        (json!(-3), 0),
        (json!("x"), 0),
        (json!(1.5), 0),
    ]) {
        let group = format!("count{n}");
        let lane = w.lease("p", &group, "batch=5").await;
        let status = if n % 2 == 0 { Value::Null } else { json!(7) };
        let ack = with(lane.done(), &json!({"count": count, "status": status}));
        let answer = w.commit(&id, &json!({"consumer_group": group, "ack": ack})).await;
        assert_eq!(answer["ack_result"], result(shown, true), "{count}");
        let cursor = w.cursor(&id, &group).await;
        assert_eq!((&cursor["committed"], &cursor["total_consumed"]), (&json!(4), &json!(shown)));
    }
    w.stop().await;
}

/// streams A2, A3, A4, A8: without the caller's own live lease nothing of the cycle is committed.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_a_live_lease_commits() {
    let w = World::start().await;
    let id = w.feed("p", 0..4).await;
    let work = json!({"state_ops": [upsert("k", &json!(1))], "push_items": [item("out", "p", 1)]});
    let none = json!({"leaseId": FOREIGN, "status": "completed", "count": 1});
    // No cursor at all, then a cursor without a lease.
    w.refuse(&id, &with(work.clone(), &json!({"ack": none})), "lease").await;
    let lane = w.lease("p", GROUP, "batch=2").await;
    w.commit(&id, &json!({"ack": lane.done()})).await;
    w.refuse(&id, &with(work.clone(), &json!({"ack": lane.done()})), "lease").await;

    let lane = w.lease("p", GROUP, "batch=2&leaseSeconds=2").await;
    for (change, release) in [
        (json!({"leaseId": FOREIGN}), true),
        (json!({"leaseId": ""}), true),
        (json!({"leaseId": null}), false),
        (json!({"leaseId": "not a uuid"}), true),
        (json!({"leaseId": FOREIGN}), false),
        (json!({"leaseId": FOREIGN, "status": "failed"}), true),
    ] {
        let ack = with(lane.done(), &change);
        let more = with(work.clone(), &json!({"ack": ack, "release_lease": release}));
        w.refuse(&id, &more, "lease").await;
    }
    let other = json!({"ack": lane.done(), "consumer_group": "other"});
    w.refuse(&id, &with(work.clone(), &other), "lease").await;
    eventually("the lease expires", async || {
        let live = "select count(*) from queen.log_consumers
                    where lease_expires_at >= clock_timestamp()";
        (w.count(live).await == 0).then_some(())
    })
    .await;
    for (status, release) in [("completed", true), ("completed", false), ("failed", true)] {
        let ack = with(lane.done(), &json!({"status": status}));
        let more = with(work.clone(), &json!({"ack": ack, "release_lease": release}));
        w.refuse(&id, &more, "lease").await;
    }
    assert_eq!(w.rows(&id).await, []);
    assert_eq!(w.count("select count(*) from queen.queues where name = 'out'").await, 0);

    let again = w.lease("p", GROUP, "batch=2").await;
    assert_eq!(again.numbers(), [2, 3]);
    w.sql.execute("update queen.log_consumers set batch_end = null", &[]).await.expect("no batch");
    w.refuse(&id, &with(work.clone(), &json!({"ack": again.done()})), "batch").await;
    w.sql.execute("update queen.log_consumers set batch_end = 3", &[]).await.expect("the batch");
    w.commit(&id, &with(work, &json!({"ack": again.done()}))).await;
    assert_eq!(w.payloads("out").await, [json!(1)]);
    w.stop().await;
}

/// streams A9, A11, A12, A13, A14, A17, A18, A19, A20, K14: a gate settles a prefix under one
/// lease, comes back for more, and gets the tail in order when the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_partial_ack_keeps_lease_and_tail() {
    let w = World::start().await;
    // Segments of 7, 2 and 6 messages.
    let id = w.feed("p", 0..7).await;
    w.feed("p", 7..9).await;
    w.feed("p", 9..15).await;
    let lane = w.lease("p", GROUP, "batch=12").await;
    let gate = |ack: Value| json!({"ack": ack, "release_lease": false});
    let leased = w.cursor(&id, GROUP).await;
    assert_eq!((&leased["committed"], &leased["batch_end"]), (&json!(-1), &json!(11)));
    let kept = |committed: i64, total: i64| {
        with(leased.clone(), &json!({"committed": committed, "total_consumed": total}))
    };
    for count in [json!(0), json!(-2), json!("3"), json!(null)] {
        let ack = with(lane.ack(0), &json!({"count": count}));
        assert_eq!(w.commit(&id, &gate(ack)).await["ack_result"], result(0, false));
        assert_eq!(w.cursor(&id, GROUP).await, leased);
    }
    // 3 inside a segment, then 5 from its middle over the next one; the id moves nothing.
    let unknown = with(lane.ack(3), &json!({"transactionId": "nobody's"}));
    assert_eq!(w.commit(&id, &gate(unknown)).await["ack_result"], result(3, false));
    assert_eq!(w.cursor(&id, GROUP).await, kept(2, 3));
    let next = with(lane.ack(8), &json!({"count": 5}));
    assert_eq!(w.commit(&id, &gate(next)).await["ack_result"], result(5, false));
    assert_eq!(w.cursor(&id, GROUP).await, kept(7, 8));
    assert!(!w.claimable("p", GROUP).await, "the lease is retained");

    // A nack gives the rest back, and what was settled stays settled.
    let nack = with(lane.done(), &json!({"status": "failed", "count": 4}));
    assert_eq!(w.commit(&id, &json!({"ack": nack})).await["ack_result"], result(0, true));
    let tail = w.lease("p", GROUP, "batch=3").await;
    assert_eq!(tail.numbers(), [8, 9, 10]);
    let attempt = |lane: &super::Lane| lane.messages[0]["deliveryAttempt"].clone();
    assert_eq!(attempt(&tail), 1, "the batch starts at another message");
    // Beyond the batch there is nothing to settle, although the log goes on.
    let over = w.commit(&id, &gate(with(tail.done(), &json!({"count": 50})))).await;
    assert_eq!(over["ack_result"], result(3, false));
    assert_eq!(w.cursor(&id, GROUP).await["committed"], 10);
    let finish = w.commit(&id, &json!({"ack": with(tail.done(), &json!({"count": 0}))})).await;
    assert_eq!(finish["ack_result"], result(0, true));

    // A lease that ends by itself: the tail, in order, and again, without end.
    let lane = w.lease("p", GROUP, "batch=4&leaseSeconds=1").await;
    assert_eq!(lane.numbers(), [11, 12, 13, 14]);
    w.commit(&id, &gate(lane.ack(1))).await;
    for round in 1..4 {
        let path = format!("in/partition/p?consumerGroup={GROUP}&batch=9&leaseSeconds=1");
        let path = format!("/api/v1/pop/queue/{path}&wait=true&timeout=20000");
        let tail = w.client.get(&path).await.expect(200);
        let tail = tail["messages"].as_array().expect("messages");
        assert_eq!(numbers_of(tail), [12, 13, 14]);
        assert_eq!(tail[0]["deliveryAttempt"], round);
    }
    let cursor = w.cursor(&id, GROUP).await;
    assert_eq!((&cursor["retry_count"], &cursor["committed"]), (&json!(0), &json!(11)));
    assert_eq!(w.count("select count(*) from queen.log_dead_letters").await, 0);
    w.stop().await;
}

/// streams A10, A11, A18: the walk counts frames that exist; offsets removed by retention are
/// skipped, at the start, in the middle and at the end.
#[tokio::test(flavor = "multi_thread")]
async fn offsets_removed_by_retention_are_not_counted() {
    let w = World::start().await;
    let mut id = String::new();
    // Segments 0-9, 10-11, 12-19, 20-24, 25-26, 27-29.
    for range in [0..10, 10..12, 12..20, 20..25, 25..27, 27..30] {
        id = w.feed("p", range).await;
    }
    let lane = w.lease("p", GROUP, "batch=10").await;
    w.commit(&id, &json!({"ack": lane.done()})).await;
    let lane = w.lease("p", GROUP, "batch=20").await;
    let remove = async |first: i64| {
        let sql = "delete from queen.log_segments where first_offset = $1";
        assert_eq!(w.sql.execute(sql, &[&first]).await.expect("removed"), 1);
    };
    let settle = async |count: usize| {
        let ack = with(lane.ack(0), &json!({"count": count, "transactionId": ""}));
        let answer = w.commit(&id, &json!({"ack": ack, "release_lease": false})).await;
        let cursor = w.cursor(&id, GROUP).await;
        (answer["ack_result"]["count"].clone(), cursor["committed"].clone())
    };
    remove(0).await;
    remove(12).await;
    // The example of A10: committed 9, segments 10-11 and 20-24, count 3.
    assert_eq!(settle(3).await, (json!(3), json!(20)));
    assert_eq!(settle(1).await, (json!(1), json!(21)));
    // The segment that holds the cursor goes, and the batch's last one.
    remove(20).await;
    assert_eq!(settle(1).await, (json!(1), json!(25)));
    remove(27).await;
    assert_eq!(settle(9).await, (json!(1), json!(26)));
    assert_eq!(w.cursor(&id, GROUP).await["total_consumed"], 10 + 3 + 1 + 1 + 1);
    let end = w.commit(&id, &json!({"ack": lane.ack(1)})).await;
    assert_eq!(end["ack_result"], result(1, true));
    assert_eq!(w.cursor(&id, GROUP).await["committed"], 29);
    w.feed("p", 30..31).await;
    assert_eq!(w.lease("p", GROUP, "").await.numbers(), [30]);
    w.stop().await;
}

/// streams A5, A6, A15, A16: any other word is a nack: the lease ends, the batch comes again, the
/// rest of the cycle is committed, and the retry budget is not touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_nack_redelivers_without_cost() {
    let w = World::start().await;
    let options = json!({"queue": "in", "options": {"retryLimit": 1, "leaseTime": 60}});
    w.client.post("/api/v1/configure", &options).await.expect(200);
    let id = w.feed("p", 0..3).await;
    let words = ["failed", "complete", "OK", "Completed", "", " ok", "retry", "dlq"];
    for (n, word) in words.iter().enumerate() {
        let lane = w.lease("p", GROUP, "").await;
        assert_eq!(lane.numbers(), [0, 1, 2]);
        assert_eq!(lane.messages[0]["deliveryAttempt"], n + 1);
        let ack = with(lane.done(), &json!({"status": word}));
        let more = json!({"ack": ack, "release_lease": n % 2 == 0,
                          "state_ops": [upsert("word", &json!(word))],
                          "push_items": [item("out", "p", *word)]});
        assert_eq!(w.commit(&id, &more).await["ack_result"], result(0, true), "{word}");
        assert_eq!(w.rows(&id).await, [("word".to_owned(), json!(word))]);
        let cursor = w.cursor(&id, GROUP).await;
        let untouched = json!({"committed": -1, "lease_id": null, "lease_expires_at": null,
            "batch_end": null, "retry_count": 0, "total_consumed": 0, "conflated": false});
        assert_eq!(with(cursor.clone(), &untouched), cursor);
    }
    assert_eq!(w.payloads("out").await, words.map(Value::from));
    // The budget of one retry is whole: the first ordinary nack redelivers.
    let lane = w.lease("p", GROUP, "").await;
    let nack = json!({"partitionId": id, "transactionId": lane.messages[0]["transactionId"],
                      "leaseId": lane.lease, "consumerGroup": GROUP, "status": "failed"});
    let nacked = w.client.post("/api/v1/ack", &nack).await.expect(200);
    assert_eq!((&nacked[0]["success"], &nacked[0]["dlq"]), (&json!(true), &json!(false)));
    assert_eq!(w.count("select count(*) from queen.log_dead_letters").await, 0);
    assert_eq!(w.lease("p", GROUP, "").await.numbers(), [0, 1, 2]);
    w.stop().await;
}

/// streams A21: one delivered message stands for its whole span.
#[tokio::test(flavor = "multi_thread")]
async fn an_ack_of_a_conflated_message_settles_its_span() {
    let w = World::start().await;
    let id = w.feed("p", 0..5).await;
    w.feed("p", 5..9).await;
    let lane = w.lease("p", GROUP, "conflation=true").await;
    assert_eq!(lane.numbers(), [8]);
    let gate = |count: u64| {
        json!({"ack": with(lane.ack(1), &json!({"count": count})),
                                   "release_lease": false})
    };
    w.commit(&id, &gate(0)).await;
    assert_eq!(w.cursor(&id, GROUP).await["committed"], -1);
    assert_eq!(w.commit(&id, &gate(1)).await["ack_result"], result(1, false));
    let cursor = w.cursor(&id, GROUP).await;
    assert_eq!((&cursor["committed"], &cursor["batch_end"]), (&json!(8), &json!(8)));
    w.commit(&id, &json!({"ack": lane.done()})).await;
    w.feed("p", 9..12).await;
    assert_eq!(w.lease("p", GROUP, "conflation=true").await.numbers(), [11]);
    w.stop().await;
}
