//! Who waits for whom: a row lock of the test's own stands for a cycle in progress.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    CYCLE, GROUP, QUERIES, World, committed, delete, hold, item, partition_lock, refused,
    shard_lock, upsert, with,
};
use crate::support::eventually;

/// streams X1, X2: while one cycle of a shard is held up, cycles of the same shard wait and other
/// partitions and queries do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_serialised_and_others_go_on() {
    let w = World::start().await;
    let other = w.client.register("other", "in").await;
    let (a, b) = (w.feed("a", 0..2).await, w.feed("b", 0..2).await);
    for id in [&a, &b] {
        w.commit(id, &json!({"state_ops": [upsert("k", &json!(0))]})).await;
    }
    let lane = w.lease("a", GROUP, "").await;
    let mut holder = w.server.database.sql().await;
    let held = hold(&mut holder, &shard_lock(&a)).await;
    let flush = json!({"state_ops": [delete("k")], "push_items": [item("out", "p", "flush")]});
    let waits = async {
        let fold = json!({"state_ops": [upsert("k", &json!("late"))], "ack": lane.done()});
        let (fold, flush) = (w.body(&a, &fold), w.body(&a, &flush));
        let (fold, flush) = tokio::join!(w.client.cycle(&fold), w.client.cycle(&flush));
        committed(fold);
        committed(flush);
    };
    let goes_on = async {
        w.blocked(1).await;
        for n in 0..10 {
            w.commit(&b, &json!({"state_ops": [upsert("k", &json!(n))]})).await;
            let body = json!({"query_id": other, "state_ops": [upsert("k", &json!(n))]});
            w.commit(&a, &body).await;
        }
        assert_eq!(w.rows(&a).await, [("k".to_owned(), json!(0))]);
        assert_eq!(w.cursor(&a, GROUP).await["committed"], -1);
        held.commit().await.expect("released");
    };
    tokio::join!(waits, goes_on);
    assert_eq!(w.payloads("out").await, [json!("flush")]);
    assert_eq!(w.cursor(&a, GROUP).await["committed"], 1);
    w.stop().await;
}

/// streams X6: a pop neither waits for a cycle in progress nor sees half of one.
#[tokio::test(flavor = "multi_thread")]
async fn pops_pass_a_cycle_in_progress() {
    let w = World::start().await;
    let (a, b) = (w.feed("a", 0..2).await, w.feed("b", 0..2).await);
    w.client.push("out", "p", &[json!({"n": 0})]).await;
    let sink = w.partition_id("out", "p").await;
    let lane = w.lease("a", GROUP, "").await;
    let mut holder = w.server.database.sql().await;
    let held = hold(&mut holder, &partition_lock(&sink)).await;
    let body = w.body(
        &a,
        &json!({"state_ops": [upsert("k", &json!(1))], "ack": lane.done(),
                                  "push_items": [item("out", "p", 1), item("out", "q", 1)]}),
    );
    let peek = async || {
        let query = "consumerGroup=peek&subscriptionMode=all&batch=10&leaseSeconds=1";
        super::numbers_of(&w.client.pop("out", query).await)
    };
    assert_eq!(peek().await, [0]);
    let looks = async {
        w.blocked(1).await;
        eventually("the message that was there is given again", async || {
            let found = peek().await;
            assert!(found.is_empty() || found == [0], "half a cycle: {found:?}");
            (!found.is_empty()).then_some(())
        })
        .await;
        assert_eq!(w.rows(&a).await, []);
        let query = format!("consumerGroup={GROUP}&partitions=4");
        let found = super::Lane::of(w.client.pop("in", &query).await);
        assert_eq!(found.iter().map(|l| &l.id).collect::<Vec<_>>(), [&b]);
        held.commit().await.expect("released");
    };
    let (answer, ()) = tokio::join!(w.client.cycle(&body), looks);
    committed(answer);

    // The cursor row itself, which a cycle holds only at its very end.
    w.feed("a", 2..4).await;
    let cursor = format!(
        "select 1 from queen.log_consumers lc join queen.log_partitions lp
        using (pid) where lp.id = '{a}' for update of lc"
    );
    let held = hold(&mut holder, &cursor).await;
    assert!(!w.claimable("a", GROUP).await, "skipped");
    held.commit().await.expect("released");
    assert_eq!(w.lease("a", GROUP, "").await.numbers(), [2, 3]);
    w.stop().await;
}

/// streams X12: whoever waited for a lock is judged by the clock after it, not before.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_while_a_cycle_waits_is_lost() {
    let w = World::start().await;
    for (n, release) in [(0, true), (1, false), (2, true)] {
        let partition = format!("p{n}");
        let id = w.feed(&partition, 0..2).await;
        w.client.push("out", "p", &[json!("before")]).await;
        w.commit(&id, &json!({"state_ops": [upsert("k", &json!(0))]})).await;
        let lane = w.lease(&partition, GROUP, "leaseSeconds=2").await;
        let lock = match n {
            0 => shard_lock(&id),
            1 => partition_lock(&w.partition_id("out", "p").await),
            _ => format!(
                "select 1 from queen.log_consumers where lease_id = '{}' for update",
                lane.lease
            ),
        };
        let mut holder = w.server.database.sql().await;
        let held = hold(&mut holder, &lock).await;
        let body = w.body(
            &id,
            &json!({"ack": lane.done(), "release_lease": release,
            "state_ops": [upsert("k", &json!("late"))], "push_items": [item("out", "p", "late")]}),
        );
        let expires = async {
            w.blocked(1).await;
            let live = format!(
                "select count(*) from queen.log_consumers
                 where lease_id = '{}' and lease_expires_at >= clock_timestamp()",
                lane.lease
            );
            eventually("the lease ends", async || (w.count(&live).await == 0).then_some(())).await;
            held.commit().await.expect("released");
        };
        let (answer, ()) = tokio::join!(w.client.cycle(&body), expires);
        refused(answer, "lease");
        assert_eq!(w.rows(&id).await, [("k".to_owned(), json!(0))]);
        assert_eq!(w.lease(&partition, GROUP, "").await.numbers(), [0, 1]);
    }
    assert!(w.payloads("out").await.iter().all(|p| p == "before"));
    w.stop().await;
}

/// streams X3: a cycle that waits for a row holds none that comes later in the order; several
/// segments for one partition make it refer to the queue's row.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_cycle_holds_nothing_that_comes_later() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    w.commit(&id, &json!({"state_ops": [upsert("k", &json!(1))]})).await;
    w.client.push("out", "p", &[json!(0)]).await;
    let sink = w.partition_id("out", "p").await;
    let lane = w.lease("p", GROUP, "").await;
    let items: Vec<Value> = (1..=1_500).map(|n| item("out", "p", n)).collect();
    let body = w.body(&id, &json!({"ack": lane.done(), "push_items": items}));
    let cursor = format!("select 1 from queen.log_consumers where lease_id = '{}'", lane.lease);
    let order = [
        "select 1 from queen.queues where name = 'out'".to_owned(),
        format!("select 1 from foldmq.shards where partition_id = '{id}'"),
        format!("select 1 from queen.log_partitions where id = '{sink}'"),
        cursor,
    ];
    for (n, lock) in order.iter().enumerate() {
        let mut holder = w.server.database.sql().await;
        let held = hold(&mut holder, &format!("{lock} for update")).await;
        let looks = async {
            w.blocked(1).await;
            for later in &order[n + 1..] {
                let free = w.sql.query(&format!("{later} for update nowait"), &[]).await;
                assert_eq!(free.expect(later).len(), 1);
            }
            held.commit().await.expect("released");
        };
        if n + 1 < order.len() {
            // An ack that fails undoes the rest, so that the same cycle can be sent again.
            let mut stale = body.clone();
            stale["ack"]["leaseId"] = json!(w.query);
            let (answer, ()) = tokio::join!(w.client.cycle(&stale), looks);
            refused(answer, "lease");
        } else {
            let (answer, ()) = tokio::join!(w.client.cycle(&body), looks);
            committed(answer);
        }
    }
    let numbers: Vec<Value> = (0..=1_500).map(Value::from).collect();
    assert_eq!(w.payloads("out").await, numbers);
    w.stop().await;
}

/// streams X5: a deadlock with somebody else's transaction is repeated, not answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_repeated_inside_the_broker() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    for partition in ["x", "y"] {
        w.client.push("out", partition, &[json!(0)]).await;
    }
    let pids = "select lp.id::text from queen.log_partitions lp join queen.queues q
                using (queue_no) where q.name = 'out' order by pid";
    let pids = w.sql.query(pids, &[]).await.expect("partitions");
    let (low, high): (String, String) = (pids[0].get(0), pids[1].get(0));
    let lane = w.lease("p", GROUP, "").await;
    let body = w.body(
        &id,
        &json!({"ack": lane.done(), "state_ops": [upsert("k", &json!(1))],
        "push_items": [item("out", "x", 1), item("out", "y", 1)]}),
    );
    let mut holder = w.server.database.sql().await;
    // The test's own side waits longer than the cycle's, so that the cycle is the victim.
    holder.batch_execute("set deadlock_timeout = '60s'").await.expect("a superuser");
    let held = hold(&mut holder, &partition_lock(&high)).await;
    let crosses = async {
        w.blocked(1).await;
        let lock = partition_lock(&low);
        let crossed = tokio::time::timeout(Duration::from_secs(30), held.query(&lock, &[]));
        assert_eq!(crossed.await.expect("the cycle gave way").expect("a lock").len(), 1);
        held.commit().await.expect("released");
    };
    let (answer, ()) = tokio::join!(w.client.cycle(&body), crosses);
    committed(answer);
    assert_eq!(w.payloads("out").await.iter().filter(|p| **p == 1).count(), 2);
    assert_eq!(w.rows(&id).await, [("k".to_owned(), json!(1))]);
    w.stop().await;
}

/// streams X13: a registration of an equal hash in progress holds up no cycle, not even the first
/// of a shard; a reset waits for running cycles and is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_blocks_no_cycle_and_a_reset_is_atomic() {
    let w = World::start().await;
    let (a, b) = (w.feed("a", 0..1).await, w.feed("b", 0..1).await);
    w.client.push("out", "p", &[json!(0)]).await;
    let sink = w.partition_id("out", "p").await;
    let same = json!({"name": "q", "source_queue": "in", "config_hash": "h"});
    let mut holder = w.server.database.sql().await;
    let update = "update queen_streams.queries set source_queue = 'in' returning 1";
    let held = hold(&mut holder, update).await;
    w.commit(&a, &json!({"state_ops": [upsert("k", &json!(1))]})).await;
    held.commit().await.expect("released");
    // Nor does it wait for the first cycle of a shard.
    let held = hold(&mut holder, &partition_lock(&sink)).await;
    let first = w.body(&w.feed("c", 0..1).await, &json!({"push_items": [item("out", "p", 1)]}));
    let (first, ()) = tokio::join!(w.client.cycle(&first), async {
        w.blocked(1).await;
        w.client.post(QUERIES, &same).await.expect(200);
        held.commit().await.expect("released");
    });
    committed(first);

    // A cycle in progress on one shard: the reset waits for it, a plain registration does not.
    let held = hold(&mut holder, &shard_lock(&a)).await;
    let reset = with(same.clone(), &json!({"config_hash": "new", "reset": true}));
    let meanwhile = async {
        w.client.post(QUERIES, &same).await.expect(200);
        let (reset, ()) = tokio::join!(w.client.post(QUERIES, &reset), async {
            w.blocked(1).await;
            assert_eq!(w.rows(&a).await.len(), 1);
            // A first cycle of another shard waits for the reset that is under way.
            let body = w.body(&b, &json!({"state_ops": [upsert("k", &json!(2))]}));
            let (late, ()) = tokio::join!(w.client.post(CYCLE, &body), async {
                w.blocked(2).await;
                held.commit().await.expect("released");
            });
            committed(late.expect(200));
        });
        assert_eq!(reset.expect(200)["reset"], true);
    };
    meanwhile.await;
    assert_eq!(w.rows(&a).await, []);
    assert_eq!(w.rows(&b).await, [("k".to_owned(), json!(2))]);
    w.stop().await;
}
