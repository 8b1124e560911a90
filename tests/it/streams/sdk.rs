//! What the runners of the official SDKs rely on (streams section 10).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{GROUP, Lane, STATE, World, committed, delete, item, numbers, rows, upsert};
use crate::support::{Client, TestServer, eventually};

const WINDOW: u64 = 10;

/// A runner of a tumbling count over `n`, as the SDKs write it: whole shard, fold, close what the
/// watermark has passed, one cycle a partition.
struct Runner {
    client: Client,
    query: String,
}

impl Runner {
    /// One turn; `None` where the pop gave nothing. Lanes for which `crash` says so are abandoned.
    async fn turn(&self, crash: impl Fn(&Lane) -> bool) -> Option<()> {
        let path = format!(
            "/api/v1/pop/queue/in?batch=200&partitions=4&wait=true&timeout=300\
             &consumerGroup={GROUP}&subscriptionMode=all&leaseSeconds=2"
        );
        let popped = self.client.get(&path).await;
        if popped.status == 204 {
            return None;
        }
        let body = popped.expect(200);
        for lane in Lane::of(body["messages"].as_array().expect("messages").clone()) {
            if !crash(&lane) {
                self.cycle(&lane).await;
            }
        }
        Some(())
    }

    async fn cycle(&self, lane: &Lane) {
        let mut sorted = lane.messages.clone();
        sorted.sort_by_key(|m| {
            let at: jiff::Timestamp =
                m["createdAt"].as_str().expect("a time").parse().expect("a time");
            (at.as_millisecond(), m["id"].as_str().expect("an id").to_owned())
        });
        assert_eq!(sorted, lane.messages, "a runner's order is the log's");
        let read = json!({"query_id": self.query, "partition_id": lane.id, "keys": []});
        let rows = rows(&self.client.post(STATE, &read).await);
        let mut open: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, value) in &rows {
            if let Some(start) = key.strip_prefix("tumb:10\u{1f}") {
                let start = start.split('\u{1f}').next().expect("a start");
                let acc = value["acc"].as_u64().expect("a count");
                open.insert(start.parse().expect("a number"), acc);
            }
        }
        for n in lane.numbers() {
            *open.entry(n / WINDOW * WINDOW).or_default() += 1;
        }
        let watermark = lane.numbers().last().copied().expect("a message");
        let (mut ops, mut items) = (Vec::new(), Vec::new());
        for (start, acc) in open {
            let key = format!("tumb:10\u{1f}{start:08}\u{1f}k");
            let window = json!({"acc": acc, "windowStart": start, "windowEnd": start + WINDOW});
            if start + WINDOW <= watermark {
                ops.push(delete(&key));
                items.push(item("out", &lane.name, window));
            } else {
                ops.push(upsert(&key, &window));
            }
        }
        ops.push(upsert("__wm__", &json!({"eventTimeMs": watermark})));
        let body = json!({"query_id": self.query, "partition_id": lane.id,
            "consumer_group": lane.messages[0]["consumerGroup"], "state_ops": ops,
            "push_items": items, "ack": lane.done(), "release_lease": true});
        let answer = self.client.cycle(&body).await;
        // A lane whose lease ran out comes again.
        let lost = answer["error"].as_str().is_some_and(|error| error.contains("lease"));
        assert!(lost || answer["success"] == true, "{answer}");
    }

    /// Closes what is due on a quiet partition (streams K12).
    async fn flush(&self, name: &str, partition: &str) {
        let read = json!({"query_id": self.query, "partition_id": partition, "keys": [],
                          "key_prefix": "tumb:10\u{1f}", "ripe_at_or_before": 1e9});
        let due = rows(&self.client.post(STATE, &read).await);
        let ops: Vec<Value> = due.iter().map(|(key, _)| delete(key)).collect();
        let items: Vec<Value> = due.iter().map(|(_, v)| item("out", name, v.clone())).collect();
        let body = json!({"query_id": self.query, "partition_id": partition,
            "consumer_group": GROUP, "state_ops": ops, "push_items": items, "ack": null});
        committed(self.client.cycle(&body).await);
    }
}

/// streams K1, K2, K3, K7, K9, K10, K11, K12, K13, K15, K18, K19, K22, G27: two runners of one name
/// on two brokers, one of which abandons batches and starts anew, close each window of 5 000
/// messages over 20 partitions once, in order, with exact counts.
#[tokio::test(flavor = "multi_thread")]
async fn two_runners_of_one_name_close_each_window_once() {
    const PARTITIONS: usize = 20;
    const EACH: usize = 250;
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let mut ids = HashMap::new();
    for n in 0..PARTITIONS {
        let name = format!("p{n}");
        let id = w.feed(&name, 0..EACH).await;
        ids.insert(name, id);
    }
    // Same name, same hash: the same query, state and cursors.
    let start = async |client: Client| {
        let query = client.register("q", "in").await;
        assert_eq!(query, w.query);
        Runner { client, query }
    };
    let settled = async || {
        let sql = "select coalesce(sum(committed + 1), 0)::bigint from queen.log_consumers
                   join queen.log_groups using (group_no) where name = 'streams.q'";
        w.count(sql).await == i64::try_from(PARTITIONS * EACH).expect("small")
    };
    let steady = async {
        let runner = start(w.client.clone()).await;
        eventually("everything is settled", async || {
            runner.turn(|_| false).await;
            settled().await.then_some(())
        })
        .await;
    };
    let crashing = async {
        for life in 0..3 {
            let runner = start(second.client()).await;
            for turn in 0..3 {
                runner.turn(|lane| turn == 2 && lane.name.len() != life % 2 + 2).await;
            }
        }
    };
    tokio::join!(steady, crashing);
    let runner = start(second.client()).await;
    for (name, id) in &ids {
        runner.flush(name, id).await;
        runner.flush(name, id).await;
        let left = json!({"eventTimeMs": EACH - 1});
        assert_eq!(w.rows(id).await, [("__wm__".to_owned(), left)]);
    }
    let mut windows: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for message in w.all("out").await {
        let lane = message["partition"].as_str().expect("a name").to_owned();
        windows.entry(lane).or_default().push(message["data"].clone());
    }
    assert_eq!(windows.len(), PARTITIONS);
    let expected: Vec<Value> = (0..EACH as u64 / WINDOW)
        .map(|n| json!({"acc": WINDOW, "windowStart": n * WINDOW, "windowEnd": (n + 1) * WINDOW}))
        .collect();
    for (lane, found) in windows {
        assert_eq!(found, expected, "{lane}");
    }
    second.stop().await;
    w.stop().await;
}

/// streams K5, K6, K22: a pop of several partitions has one lease, and each partition is settled or
/// lost by its own cycle; one cycle reaches many sink partitions.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_of_one_pop_are_settled_apart() {
    let w = World::start().await;
    for name in ["a", "b", "c", "d"] {
        w.feed(name, 0..3).await;
    }
    let query = format!("consumerGroup={GROUP}&subscriptionMode=all&partitions=4&batch=200");
    let lanes = Lane::of(w.client.pop("in", &query).await);
    assert_eq!(lanes.len(), 4);
    for lane in &lanes {
        assert_eq!((&lane.lease, lane.numbers()), (&lanes[0].lease, vec![0, 1, 2]));
        for message in &lane.messages {
            for key in
                ["id", "transactionId", "createdAt", "partitionId", "partition", "consumerGroup"]
            {
                assert!(message[key].as_str().is_some_and(|t| !t.is_empty()), "{key}: {message}");
            }
        }
    }
    let [done, failed, kept, lost] = &lanes[..] else { panic!("four lanes") };
    w.commit(&done.id, &json!({"ack": done.done()})).await;
    let nack = super::with(failed.done(), &json!({"status": "failed"}));
    w.commit(&failed.id, &json!({"ack": nack})).await;
    let bad = json!({"ack": lost.done(), "state_ops": [{"type": "typo", "key": "k"}]});
    w.refuse(&lost.id, &bad, "state op 0").await;
    // Only the one that was given back is there again; the others are leased as before.
    let again = Lane::of(w.client.pop("in", &query).await);
    assert_eq!(again.iter().map(|l| &l.id).collect::<Vec<_>>(), [&failed.id]);
    w.commit(&kept.id, &json!({"ack": kept.ack(1), "release_lease": false})).await;
    w.commit(&lost.id, &json!({"ack": lost.done()})).await;
    w.commit(&kept.id, &json!({"ack": kept.done()})).await;
    w.commit(&failed.id, &json!({"ack": again[0].done()})).await;
    assert!(w.client.pop("in", &query).await.is_empty());

    let items: Vec<Value> =
        (0..50).map(|n| item("wide", &format!("s{}", n % 25), json!({"n": n}))).collect();
    for base in [0, 2] {
        let answer = w.commit(&done.id, &json!({"push_items": items})).await;
        let results = answer["push_results"].as_array().expect("results");
        assert_eq!(results.len(), 25);
        for (n, result) in results.iter().enumerate() {
            let expected = json!({"partition": format!("s{n}"), "baseOffset": base});
            assert_eq!(super::with(result.clone(), &expected), *result);
        }
    }
    for lane in Lane::of(w.client.pop("wide", &query.replace("=4", "=64")).await) {
        let n: u64 = lane.name[1..].parse().expect("a number");
        assert_eq!(lane.numbers(), [n, n + 25, n, n + 25]);
    }
    w.stop().await;
}

/// streams K14, K15, K23, A13, A20: a token bucket that nobody refills before the lease ends: the
/// batch comes back in order, nothing is lost, extended or dead-lettered.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_lets_a_batch_through_in_order() {
    const BURST: usize = 4;
    let w = World::start().await;
    let options = json!({"queue": "in", "options": {"retryLimit": 0, "leaseTime": 60}});
    w.client.post("/api/v1/configure", &options).await.expect(200);
    let id = w.feed("p", 0..14).await;
    let path = format!(
        "/api/v1/pop/queue/in?consumerGroup={GROUP}&subscriptionMode=all&partitions=1\
         &leaseSeconds=1&wait=true&timeout=20000"
    );
    let mut leases = 0;
    let mut at = 0;
    while at < 14 {
        let popped = w.client.get(&path).await.expect(200);
        let lane = Lane::of(popped["messages"].as_array().expect("messages").clone()).remove(0);
        assert_eq!(lane.numbers(), (at..14).collect::<Vec<_>>());
        leases += 1;
        if leases == 2 {
            // Nothing allowed: no cycle at all, the lease lapses.
            continue;
        }
        let expires = w.cursor(&id, GROUP).await["lease_expires_at"].clone();
        let settled = lane.messages.len().min(BURST);
        let denied = settled < lane.messages.len();
        let items: Vec<Value> =
            lane.messages[..settled].iter().map(|m| item("out", "p", m["data"].clone())).collect();
        let more = json!({"ack": lane.ack(settled), "release_lease": !denied,
            "push_items": items, "state_ops": [upsert(&id, &json!({"tokens": 0}))]});
        w.commit(&id, &more).await;
        at += settled as u64;
        if denied {
            assert_eq!(w.cursor(&id, GROUP).await["lease_expires_at"], expires);
        }
    }
    assert_eq!(leases, 5);
    let sent: Vec<Value> = w.payloads("out").await;
    assert_eq!(sent, numbers(0..14));
    assert_eq!(w.count("select count(*) from queen.log_dead_letters").await, 0);
    w.stop().await;
}

/// streams K4, K20, K21: registration makes no group; the first pop says where it starts; two
/// queries over one queue each see everything, message by message.
#[tokio::test(flavor = "multi_thread")]
async fn queries_are_independent_groups_from_their_first_pop() {
    let w = World::start().await;
    let id = w.feed("p", 0..3).await;
    w.client.register("new", "in").await;
    w.client.register("all", "in").await;
    assert_eq!(w.count("select count(*) from queen.log_groups").await, 0);
    let pop = async |name: &str, mode: &str| {
        let query = format!("consumerGroup=streams.{name}&subscriptionMode={mode}&batch=200");
        w.client.pop("in", &query).await
    };
    assert!(pop("new", "new").await.is_empty(), "the backlog is skipped");
    w.feed("p", 3..6).await;
    // A registration again moves nothing.
    w.client.register("new", "in").await;
    let found = Lane::of(pop("new", "all").await);
    assert_eq!(found[0].numbers(), [3, 4, 5]);
    let all = Lane::of(pop("all", "all").await);
    assert_eq!(all[0].numbers(), [0, 1, 2, 3, 4, 5]);
    let settle = |name: &str, lane: &Lane| {
        let group = format!("streams.{name}");
        json!({"consumer_group": group, "ack": lane.done()})
    };
    w.commit(&id, &settle("new", &found[0])).await;
    assert!(pop("new", "new").await.is_empty());
    w.refuse(&id, &settle("all", &found[0]), "lease").await;
    w.commit(&id, &settle("all", &all[0])).await;
    assert!(pop("all", "all").await.is_empty());
    w.stop().await;
}
