//! What a cycle request may leave out, and what refuses it (streams section 4).

use serde_json::{Value, json};

use super::{CYCLE, GROUP, World, committed, item, refused, upsert, with};

const UNKNOWN: &str = "00000000-0000-7000-8000-00000000beef";

/// streams C7, Y2, Y8, Y9, Y10, E1, E7, E8, E9, E10, C11: ids decide between 400, a refusal and
/// work.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_judged_before_anything_is_written() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    let work = json!({"state_ops": [upsert("k", &json!(1))], "push_items": [item("out", "p", 1)]});
    let ids = |query: Value, partition: Value| {
        with(work.clone(), &json!({"query_id": query, "partition_id": partition}))
    };
    let (query, partition) = (json!(w.query), json!(id));
    for (body, field) in [
        (json!({"partition_id": partition}), "query_id"),
        (json!({"query_id": query}), "partition_id"),
        (ids(Value::Null, partition.clone()), "query_id"),
        (ids(json!(""), json!("")), "query_id"),
        (ids(query.clone(), json!(7)), "partition_id"),
        (json!([]), "object"),
        (json!("x"), "object"),
    ] {
        let answer = w.client.post(CYCLE, &body).await.expect(400);
        assert!(answer["error"].as_str().expect("text").contains(field), "{body}: {answer}");
    }
    assert_eq!(w.client.post_text(CYCLE, "{\"query_id\":".to_owned()).await.status, 400);

    // The partition is judged before the query.
    for (query_id, partition_id, words, shown) in [
        (json!(UNKNOWN), json!(UNKNOWN), "partition not found", (UNKNOWN, UNKNOWN)),
        (query.clone(), json!(UNKNOWN), "partition not found", (&*w.query, UNKNOWN)),
        (json!(UNKNOWN), partition.clone(), "query not found", (UNKNOWN, &*id)),
        (json!("not-a-uuid"), partition.clone(), "query_id", ("", &*id)),
        (query.clone(), json!("p"), "partition_id", (&*w.query, "")),
        (json!("x"), json!("y"), "uuid", ("", "")),
    ] {
        let answer = w.client.cycle(&ids(query_id, partition_id)).await;
        let answer = refused(answer, words);
        assert_eq!(
            (&answer["query_id"], &answer["partition_id"]),
            (&json!(shown.0), &json!(shown.1))
        );
        if words.ends_with("not found") {
            assert_eq!(answer["error"], words, "{answer}");
        }
    }
    assert_eq!(w.count("select count(*) from queen.queues where name = 'out'").await, 0);
    assert_eq!(w.count("select count(*) from foldmq.state").await, 0);
    committed(w.client.cycle(&ids(query, partition)).await);
    assert_eq!(w.count("select count(*) from foldmq.state").await, 1);
    w.stop().await;
}

/// streams C2, C9, C10, Y3, Y4, Y5, Y6, Y11, E3, E4, E6: defaults of every field, and the envelope
/// of a cycle that does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn absent_fields_have_their_defaults() {
    let w = World::start().await;
    let id = w.feed("p", 0..6).await;
    let ids = json!({"query_id": w.query, "partition_id": id});
    let nothing = json!({"success": true, "query_id": w.query, "partition_id": id,
        "queueName": "in", "state_ops_applied": 0, "push_results": [], "ack_result": null});
    for more in [
        json!({}),
        json!({"state_ops": [], "push_items": [], "ack": null, "unknown": {"x": 1}}),
        json!({"state_ops": null, "push_items": null, "consumer_group": null}),
        json!({"push_items": "text", "consumer_group": "", "release_lease": "no"}),
        json!({"push_items": {"queue": "out"}, "release_lease": null}),
    ] {
        assert_eq!(w.client.cycle(&with(ids.clone(), &more)).await, nothing, "{more}");
    }
    assert_eq!(w.count("select count(*) from foldmq.state").await, 0);
    assert_eq!(w.count("select count(*) from queen.queues").await, 1);
    assert_eq!(w.count("select count(*) from queen.log_consumers").await, 0);
    for (more, words) in [
        (json!({"state_ops": {"type": "delete", "key": "k"}}), "state_ops"),
        (json!({"state_ops": "x"}), "state_ops"),
        (json!({"state_ops": [5]}), "state op 0"),
        (json!({"ack": "completed"}), "ack"),
        (json!({"consumer_group": "a\u{0}b"}), "consumer_group"),
    ] {
        refused(w.client.cycle(&with(ids.clone(), &more)).await, words);
    }

    // No group is the queue mode's cursor; no flag, and one that is no boolean, release.
    for (group, flag, from) in
        [(None, None, 0), (Some(""), Some(json!("false")), 2), (None, Some(json!(0)), 4)]
    {
        let lane = w.lease("p", "__QUEUE_MODE__", "batch=2").await;
        assert_eq!(lane.numbers(), [from, from + 1]);
        let mut body = with(ids.clone(), &json!({"ack": lane.done()}));
        if let Some(group) = group {
            body["consumer_group"] = json!(group);
        }
        if let Some(flag) = flag {
            body["release_lease"] = flag;
        }
        let answer = committed(w.client.cycle(&body).await);
        let result = json!({"success": true, "count": 2, "lease_released": true, "dlq": false});
        assert_eq!(answer["ack_result"], result);
        // The lease was of another group: this cycle's default is not the query's own.
        let wrong = with(body, &json!({"consumer_group": GROUP}));
        refused(w.client.cycle(&wrong).await, "lease");
    }
    w.stop().await;
}

/// streams Y12, Y13, C1, C8: a partition of any queue serves; without an ack nothing depends on a
/// lease.
#[tokio::test(flavor = "multi_thread")]
async fn any_partition_serves_and_no_lease_is_needed_without_an_ack() {
    let w = World::start().await;
    w.client.push("elsewhere", "p", &[json!(1)]).await;
    let id = w.partition_id("elsewhere", "p").await;
    let work = json!({"state_ops": [upsert("k", &json!(1))], "push_items": [item("out", "p", 5)],
                      "ack": null, "consumer_group": "never-popped"});
    let answer = w.commit(&id, &work).await;
    assert_eq!(answer["queueName"], "elsewhere");
    assert_eq!(w.rows(&id).await, [("k".to_owned(), json!(1))]);
    assert_eq!(w.payloads("out").await, [json!(5)]);
    let acked = with(work, &json!({"ack": {"leaseId": UNKNOWN, "count": 1}}));
    w.refuse(&id, &acked, "lease").await;
    assert_eq!(w.payloads("out").await, [json!(5)]);
    w.stop().await;
}
