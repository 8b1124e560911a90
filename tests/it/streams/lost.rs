//! Lost answers, repeated requests, lost leases, killed servers (streams X7-X11, X15).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rand::Rng;
use serde_json::{Value, json};

use super::{
    CYCLE, GROUP, Lane, World, committed, delete, hold, item, numbers, numbers_of, refused,
    shard_lock, upsert, with,
};
use crate::support::process::{BrokerProcess, free_port};
use crate::support::{Client, Database, TestServer, eventually};

impl World {
    /// Sends a cycle, goes away before its answer, and waits until it has committed all the same.
    async fn lose_answer(&self, partition: &str, body: &Value) {
        let version =
            format!("select version from foldmq.shards where partition_id = '{partition}'");
        let before = self.count(&version).await;
        let mut holder = self.server.database.sql().await;
        let held = hold(&mut holder, &shard_lock(partition)).await;
        let request = self.client.request(reqwest::Method::POST, CYCLE).body(body.to_string());
        let sent = self.client.try_send(request);
        tokio::select! {
            answer = sent => panic!("the cycle waits: {answer:?}"),
            () = self.blocked(1) => {}
        }
        held.commit().await.expect("released");
        eventually("the cycle commits", async || {
            (self.count(&version).await == before + 1).then_some(())
        })
        .await;
    }
}

/// streams X7, E2, A3: after a lost answer the retry of a full ack is refused, and everything is
/// there once.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_full_ack_finds_the_lease_gone() {
    let w = World::start().await;
    let id = w.feed("p", 0..4).await;
    w.commit(&id, &json!({"state_ops": [upsert("sum", &json!(0)), upsert("open", &json!(1))]}))
        .await;
    let lane = w.lease("p", GROUP, "batch=3").await;
    let body = w.body(
        &id,
        &json!({"ack": lane.done(),
        "state_ops": [upsert("sum", &json!(3)), delete("open")],
        "push_items": [item("out", "p", json!({"n": 3})), item("new", "p", 1)]}),
    );
    w.lose_answer(&id, &body).await;
    for _ in 0..3 {
        refused(w.client.cycle(&body).await, "lease");
    }
    assert_eq!(numbers_of(&w.all("out").await), [3]);
    assert_eq!(w.payloads("new").await, [json!(1)]);
    assert_eq!(w.rows(&id).await, [("sum".to_owned(), json!(3))]);
    let cursor = w.cursor(&id, GROUP).await;
    assert_eq!((&cursor["committed"], &cursor["total_consumed"]), (&json!(2), &json!(3)));
    // Nor does it hurt who holds the next lease.
    let next = w.lease("p", GROUP, "").await;
    assert_eq!(next.numbers(), [3]);
    refused(w.client.cycle(&body).await, "lease");
    w.commit(&id, &json!({"ack": next.done()})).await;
    w.stop().await;
}

/// streams X8, X9: the retry of a gate's partial ack is refused as already applied and keeps the
/// lease; ids that prove nothing are ignored.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_partial_ack_is_not_applied_twice() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    w.commit(&id, &json!({"state_ops": [upsert("tokens", &json!(9))]})).await;
    w.commit(&id, &json!({"ack": w.lease("p", GROUP, "").await.done()})).await;
    w.feed("p", 2..10).await;
    let lane = w.lease("p", GROUP, "").await;
    assert_eq!(lane.numbers().len(), 8);
    let gate = |ack: Value| {
        w.body(
            &id,
            &json!({"ack": ack, "release_lease": false,
            "state_ops": [upsert("tokens", &json!(6))],
            "push_items": [item("out", "p", json!({"n": 3}))]}),
        )
    };
    let first = gate(lane.ack(3));
    w.lose_answer(&id, &first).await;
    let before = w.cursor(&id, GROUP).await;
    assert_eq!(before["committed"], 4);
    for _ in 0..2 {
        refused(w.client.cycle(&first).await, "already applied");
    }
    assert_eq!(w.cursor(&id, GROUP).await, before, "the lease is kept");
    assert_eq!(numbers_of(&w.all("out").await), [3]);

    // The id of a message further below is a repetition as well.
    let older = with(lane.ack(1), &json!({"count": 1}));
    refused(w.client.cycle(&gate(older)).await, "already applied");
    // An id of the rest of the batch, one found nowhere, and none at all: the ack counts.
    let mut at = 4;
    for id_of_ack in
        [lane.messages[4]["transactionId"].clone(), json!("nobody's"), json!(""), Value::Null]
    {
        let ack = with(lane.ack(1), &json!({"transactionId": id_of_ack}));
        committed(w.client.cycle(&gate(ack)).await);
        at += 1;
        assert_eq!(w.cursor(&id, GROUP).await["committed"], at);
    }
    // One id below and in the batch proves nothing either.
    w.commit(&id, &json!({"ack": lane.done()})).await;
    let off = json!({"queue": "in", "options": {"dedupWindowSeconds": 0}});
    w.client.post("/api/v1/configure", &off).await.expect(200);
    for n in [10, 11] {
        let twice = with(item("in", "p", json!({"n": n})), &json!({"transactionId": "twice"}));
        w.client.post("/api/v1/push", &json!({"items": [twice]})).await.expect(201);
    }
    w.feed("p", 12..14).await;
    let lane = w.lease("p", GROUP, "").await;
    assert_eq!(lane.numbers(), [10, 11, 12, 13]);
    committed(w.client.cycle(&gate(lane.ack(1))).await);
    committed(w.client.cycle(&gate(lane.ack(1))).await);
    assert_eq!(w.cursor(&id, GROUP).await["committed"], 11);
    refused(w.client.cycle(&gate(lane.ack(1))).await, "already applied");
    w.stop().await;
}

/// streams X10, P12: a retry of a cycle without ack emits again, unless its items carry ids.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_without_ack_is_guarded_by_transaction_ids_alone() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    w.commit(&id, &json!({"state_ops": [upsert("open", &json!(1))]})).await;
    let ided = with(item("ided", "p", 1), &json!({"transactionId": "window-1"}));
    let body = w.body(
        &id,
        &json!({"state_ops": [delete("open")],
                                   "push_items": [ided, item("bare", "p", 1)]}),
    );
    w.lose_answer(&id, &body).await;
    let again = committed(w.client.cycle(&body).await);
    let statuses: Vec<_> = again["push_results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|r| (&r["queue"], &r["status"], &r["baseOffset"]))
        .collect();
    let (ided, bare) = (json!("ided"), json!("bare"));
    let expected = [(&ided, &json!("duplicate"), &json!(0)), (&bare, &json!("queued"), &json!(1))];
    assert_eq!(statuses, expected);
    assert_eq!((w.payloads("ided").await.len(), w.payloads("bare").await.len()), (1, 2));
    w.stop().await;
}

/// streams X11: of two workers that were given one batch, only the one whose lease lives commits,
/// whichever sends first.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_current_holder_of_a_batch_commits() {
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let mut id = String::new();
    for round in 0..3_u64 {
        let from = usize::try_from(round).expect("small") * 2;
        id = w.feed("p", from..from + 2).await;
        let slow = w.lease("p", GROUP, "batch=2&leaseSeconds=1").await;
        let path = format!("/api/v1/pop/queue/in?consumerGroup={GROUP}&wait=true&timeout=20000");
        let again = second.client().get(&path).await.expect(200);
        let quick = Lane::of(again["messages"].as_array().expect("messages").clone()).remove(0);
        assert_eq!(quick.numbers(), slow.numbers());
        assert_ne!(quick.lease, slow.lease);
        let body = |lane: &Lane, who: &str| {
            w.body(
                &id,
                &json!({"ack": lane.done(), "state_ops": [upsert("who", &json!(who))],
                                "push_items": [item("out", "p", format!("{who}{round}"))]}),
            )
        };
        let (late, good) = (body(&slow, "slow"), body(&quick, "quick"));
        let other = second.client();
        let (late, good) = if round == 0 {
            (w.client.cycle(&late).await, other.cycle(&good).await)
        } else if round == 1 {
            let good = other.cycle(&good).await;
            (w.client.cycle(&late).await, good)
        } else {
            tokio::join!(w.client.cycle(&late), other.cycle(&good))
        };
        refused(late, "lease");
        committed(good);
    }
    assert_eq!(w.payloads("out").await, ["quick0", "quick1", "quick2"].map(Value::from));
    assert_eq!(w.rows(&id).await, [("who".to_owned(), json!("quick"))]);
    second.stop().await;
    w.stop().await;
}

/// One partition's worker against a broker that may die at any moment: it pops, cycles until it has
/// an answer, and starts over after a refusal, as SDK runners do.
async fn work(client: &Client, query: &str, partition: (&str, &str), total: u64) {
    let (name, id) = partition;
    let send = async |method: reqwest::Method, path: &str, body: String| {
        let request = client.request(method, path).body(body).timeout(Duration::from_secs(10));
        client.try_send(request).await.ok().filter(|answer| answer.status < 300)
    };
    let path = format!(
        "/api/v1/pop/queue/in/partition/{name}?consumerGroup={GROUP}\
         &subscriptionMode=all&batch=4&leaseSeconds=2"
    );
    let read = json!({"query_id": query, "partition_id": id, "keys": ["last"]}).to_string();
    eventually("the partition is done", async || {
        let state = send(reqwest::Method::POST, super::STATE, read.clone()).await?;
        if super::rows(&state).first().is_some_and(|(_, last)| *last == total - 1) {
            return Some(());
        }
        let popped = send(reqwest::Method::GET, &path, String::new()).await?;
        if popped.status == 204 {
            return None;
        }
        let lane = Lane::of(popped.body["messages"].as_array()?.clone()).pop()?;
        let items: Vec<Value> =
            lane.messages.iter().map(|m| item("out", name, m["data"].clone())).collect();
        let ops = [upsert("last", &lane.messages.last()?["data"]["n"])];
        let body = json!({"query_id": query, "partition_id": id, "consumer_group": GROUP,
                          "state_ops": ops, "push_items": items, "ack": lane.done()});
        let answer = eventually("an answer", async || {
            send(reqwest::Method::POST, CYCLE, body.to_string()).await
        })
        .await;
        let gone = answer.body["error"].as_str().is_some_and(|error| error.contains("lease"));
        assert!(answer.body["success"] == true || gone, "{}", answer.text);
        None
    })
    .await;
}

/// streams X15, K15, K16: a server killed among cycles leaves all or nothing of each; what was not
/// committed comes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_leaves_whole_cycles() {
    const PARTITIONS: usize = 8;
    const TOTAL: usize = 120;
    let database = Database::new().await;
    let url = database.url();
    let args = ["--database-url", url.as_str()];
    let port = free_port();
    let mut broker = BrokerProcess::start(port, &args).await;
    let client = broker.client.clone();
    let query = client.register("q", "in").await;
    let sql = database.sql().await;
    let mut partitions = Vec::new();
    for n in 0..PARTITIONS {
        let name = format!("p{n}");
        client.push("in", &name, &numbers(0..TOTAL)).await;
        let id = "select id::text from queen.log_partitions where name = $1";
        let id: String = sql.query_one(id, &[&name]).await.expect("a partition").get(0);
        partitions.push((name, id));
    }
    let workers = partitions
        .iter()
        .map(|(name, id)| work(&client, &query, (name.as_str(), id.as_str()), TOTAL as u64));
    let kills = async {
        for _ in 0..4 {
            let pause = rand::rng().random_range(20..250);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            broker.kill();
            broker = BrokerProcess::start(port, &args).await;
        }
    };
    tokio::join!(join_all(workers), kills);
    let all = client.pop("out", "consumerGroup=c&subscriptionMode=all&batch=10000&partitions=64");
    let lanes = Lane::of(all.await);
    assert_eq!(lanes.len(), PARTITIONS);
    for lane in lanes {
        assert_eq!(lane.numbers(), (0..TOTAL as u64).collect::<Vec<_>>(), "{}", lane.name);
    }
    assert_eq!(broker.terminate().await, Some(0));
}
