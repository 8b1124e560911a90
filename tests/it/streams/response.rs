//! Calls that fail, and what is left of them (streams section 8 and E2).

use serde_json::json;

use super::{CYCLE, GROUP, QUERIES, World, hold, item, partition_lock, upsert};

/// Ends the connections of the broker that wait for a row.
const CUT: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'";

/// streams E1, E2, C12: a call whose connection breaks is a 500, nothing of it is committed, and
/// the identical request succeeds afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_call_is_a_500_and_its_retry_is_safe() {
    let w = World::start().await;
    let id = w.feed("p", 0..3).await;
    w.client.push("out", "p", &[json!(0)]).await;
    let sink = w.partition_id("out", "p").await;
    let lane = w.lease("p", GROUP, "").await;
    let body = w.body(
        &id,
        &json!({"state_ops": [upsert("k", &json!(1))], "ack": lane.done(),
                                   "push_items": [item("out", "p", 1)]}),
    );
    for sinks in [1, 2] {
        let mut body = body.clone();
        if sinks == 2 {
            // With a queue to make, the cycle goes its other way.
            let items = body["push_items"].as_array_mut().expect("items");
            items.push(item("new", "p", 1));
        }
        let mut holder = w.server.database.sql().await;
        let held = hold(&mut holder, &partition_lock(&sink)).await;
        let cut = async {
            w.blocked(1).await;
            assert_eq!(w.count(CUT).await, 1);
        };
        let (answer, ()) = tokio::join!(w.client.post(CYCLE, &body), cut);
        let failed = answer.expect(500);
        assert!(failed["error"].is_string() && failed.get("ack_result").is_none(), "{failed}");
        held.rollback().await.expect("released");
        assert_eq!(w.rows(&id).await, []);
        assert_eq!(w.count("select count(*) from queen.queues where name = 'new'").await, 0);
        assert_eq!(w.cursor(&id, GROUP).await["committed"], -1);
    }
    super::committed(w.client.cycle(&body).await);
    assert_eq!(w.payloads("out").await, [json!(0), json!(1)]);
    w.stop().await;
}

/// streams Q32: the same for a registration, which then does what it was to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_registration_is_a_500_and_its_retry_is_safe() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    w.commit(&id, &json!({"state_ops": [upsert("k", &json!(1))]})).await;
    let body = json!({"name": "q", "source_queue": "in", "config_hash": "n", "reset": true});
    for lock in [
        "select 1 from queen_streams.queries for update".to_owned(),
        super::shard_lock(&id),
        "select 1 from foldmq.state for update".to_owned(),
    ] {
        let mut holder = w.server.database.sql().await;
        let held = hold(&mut holder, &lock).await;
        let cut = async {
            w.blocked(1).await;
            assert_eq!(w.count(CUT).await, 1);
        };
        let (answer, ()) = tokio::join!(w.client.post(QUERIES, &body), cut);
        assert!(answer.expect(500)["error"].is_string());
        held.rollback().await.expect("released");
        assert_eq!(w.rows(&id).await.len(), 1);
        let hash = "select count(*) from queen_streams.queries where config_hash = 'h'";
        assert_eq!(w.count(hash).await, 1);
    }
    let reset = w.client.post(QUERIES, &body).await.expect(200);
    assert_eq!((&reset["reset"], &reset["query_id"]), (&json!(true), &json!(w.query)));
    assert_eq!(w.rows(&id).await, []);
    w.stop().await;
}
