//! Long polls: what wakes them, and when they give up.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ack, ack_of, configure, fill, keys, number, parked, soon};
use crate::support::{Answer, Client, Database, TestServer};

/// A pop that would wait for longer than any test lasts; it must be answered soon after something
/// happens.
fn waiting(client: &Client, path: &str) -> tokio::task::JoinHandle<Answer> {
    let mark = if path.contains('?') { '&' } else { '?' };
    let path = format!("/api/v1/pop{path}{mark}wait=true&timeout=40000");
    let client = client.clone();
    tokio::spawn(async move { client.get(&path).await })
}

async fn answered(pop: tokio::task::JoinHandle<Answer>) -> Vec<Value> {
    let answer = soon(pop).await.expect("a pop").expect(200);
    answer["messages"].as_array().expect("a list").clone()
}

/// data 55: a push answers a waiting pop, on every route.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_answers_a_waiting_pop() {
    let server = TestServer::start().await;
    let client = server.client();
    for (i, (path, label)) in [
        ("/queue/q.t", "q.t"),
        ("/queue/q.t/partition/p?consumerGroup=pinned&subscriptionMode=all", "q.t"),
        ("?namespace=q&consumerGroup=seek&subscriptionMode=all", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let key = i.to_string();
        if i > 0 {
            // What the others left is no news for this group.
            let clear = "autoAck=true&consumerGroup=pinned&subscriptionMode=all";
            client.pop("q.t", clear).await;
            client.pop("q.t", &clear.replace("pinned", "seek")).await;
        }
        let pop = waiting(&client, path);
        parked(&client, label, 1).await;
        fill(&client, "q.t", "p", &[&key]).await;
        assert_eq!(keys(&answered(pop).await), [key.as_str()], "{path}");
        parked(&client, label, 0).await;
    }
    server.stop().await;
}

/// data 56, data 57: a quiet queue answers 204 after the timeout, no earlier and not much later;
/// whoever does not wait, or need not, is answered at once.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_timeout() {
    let server = TestServer::start().await;
    let client = server.client();
    for path in ["/queue/q", "/queue/q/partition/p", "?namespace=q"] {
        let mark = if path.contains('?') { '&' } else { '?' };
        let from = Instant::now();
        let waited = format!("/api/v1/pop{path}{mark}wait=true&timeout=700");
        assert_eq!(client.get(&waited).await.status, 204, "{path}");
        let took = from.elapsed();
        let most = Duration::from_millis(700) + Duration::from_secs(5);
        assert!(took >= Duration::from_millis(700) && took < most, "{path}: {took:?}");
        for more in ["timeout=40000", "wait=false&timeout=40000", "wait=true&timeout=0"] {
            let answer = soon(client.get(&format!("/api/v1/pop{path}{mark}{more}"))).await;
            assert_eq!(answer.status, 204, "{path} {more}");
        }
    }
    fill(&client, "q", "p", &["a"]).await;
    let messages = soon(client.pop("q", "wait=true&timeout=40000")).await;
    assert_eq!(keys(&messages), ["a"]);
    server.stop().await;
}

/// data 58: a nack wakes who waits for the lane, and so does the end of a lease or of a delay.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_becomes_free_wakes_who_waits_for_it() {
    let server = TestServer::start().await;
    let client = server.client();
    for path in ["/queue/q.t?", "/queue/q.t/partition/p?", "?namespace=q&"] {
        let label = if path.starts_with('?') { "" } else { "q.t" };
        let key = path.len().to_string();
        fill(&client, "q.t", "p", &[&key]).await;

        let held = client.pop("q.t", "").await;
        assert_eq!(keys(&held), [key.as_str()]);
        let pop = waiting(&client, path);
        parked(&client, label, 1).await;
        ack(&client, &held[0], "failed").await;
        let again = answered(pop).await;
        assert_eq!(again[0]["deliveryAttempt"], 2, "{path}");
        ack(&client, &again[0], "retry").await;

        let held = client.pop("q.t", "leaseSeconds=1").await;
        assert_eq!(held.len(), 1, "{path}");
        let pop = waiting(&client, path);
        let again = answered(pop).await;
        assert_eq!(keys(&again), [key.as_str()], "{path}");
        assert_eq!(again[0]["deliveryAttempt"], 4, "{path}");
        ack(&client, &again[0], "completed").await;
    }
    configure(&client, "late", json!({"delayedProcessing": 1})).await;
    for path in ["/queue/late", "/queue/late/partition/p"] {
        let pop = waiting(&client, path);
        parked(&client, "late", 1).await;
        fill(&client, "late", "p", &[path]).await;
        let messages = answered(pop).await;
        assert_eq!(keys(&messages), [path]);
        ack(&client, &messages[0], "completed").await;
    }
    server.stop().await;
}

/// data 58: a waiting discovery pop wakes for a push to any matching queue, also to one that is
/// born while it waits.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_wakes_for_queues_that_are_born_while_it_waits() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "n.first", json!({"namespace": "n"})).await;
    for queue in ["n.second", "n.first", "n.third"] {
        let pop = waiting(&client, "?namespace=n");
        parked(&client, "", 1).await;
        fill(&client, queue, "p", &["x"]).await;
        fill(&client, "m.other", queue, &["y"]).await;
        let messages = answered(pop).await;
        assert_eq!(keys(&messages), ["x"], "{queue}");
        ack(&client, &messages[0], "completed").await;
    }
    server.stop().await;
}

/// data 55: a pop that waits for one partition does not swallow the wake-up of one that waits for
/// any.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_pop_does_not_swallow_wake_ups() {
    let server = TestServer::start().await;
    let client = server.client();
    let pinned = waiting(&client, "/queue/q/partition/mine");
    parked(&client, "q", 1).await;
    let any = waiting(&client, "/queue/q");
    parked(&client, "q", 2).await;
    fill(&client, "q", "other", &["o"]).await;
    assert_eq!(keys(&answered(any).await), ["o"]);
    fill(&client, "q", "mine", &["m"]).await;
    assert_eq!(keys(&answered(pinned).await), ["m"]);
    server.stop().await;
}

/// data 55, data 58: a push or a nack at one broker wakes who waits at another one.
#[tokio::test(flavor = "multi_thread")]
async fn brokers_wake_each_other() {
    let database = Arc::new(Database::new().await);
    let here = TestServer::on(Arc::clone(&database)).await;
    let there = TestServer::on(database).await;
    let (near, far) = (here.client(), there.client());
    for path in ["/queue/q.t", "/queue/q.t/partition/p", "?namespace=q"] {
        let label = if path.starts_with('?') { "" } else { "q.t" };
        let pop = waiting(&far, path);
        parked(&far, label, 1).await;
        fill(&near, "q.t", "p", &[path]).await;
        let held = answered(pop).await;
        assert_eq!(keys(&held), [path]);
        let pop = waiting(&far, path);
        parked(&far, label, 1).await;
        ack(&near, &held[0], "failed").await;
        let held = answered(pop).await;
        assert_eq!(keys(&held), [path]);
        ack(&near, &held[0], "completed").await;
    }
    here.stop().await;
    there.stop().await;
}

/// data 122: who waits on a queue while it is deleted hears of the one that follows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_outlives_its_queue() {
    let server = TestServer::start().await;
    let client = server.client();
    for path in ["/queue/q", "/queue/q/partition/p"] {
        let pop = waiting(&client, path);
        parked(&client, "q", 1).await;
        client.delete("/api/v1/resources/queues/q").await.expect(200);
        fill(&client, "q", "p", &["anew"]).await;
        assert_eq!(keys(&answered(pop).await), ["anew"], "{path}");
        client.delete("/api/v1/resources/queues/q").await.expect(200);
    }
    server.stop().await;
}

/// data 55: many pushes wake many pops, each message once.
#[tokio::test(flavor = "multi_thread")]
async fn every_waiting_pop_gets_work_of_its_own() {
    let server = TestServer::start().await;
    let client = server.client();
    let pops: Vec<_> = (0..6).map(|_| waiting(&client, "/queue/q")).collect();
    parked(&client, "q", 6).await;
    let lanes = ["a", "b", "c", "d", "e", "f"];
    let items = lanes.map(|lane| super::item("q", lane, lane));
    super::push(&client, &items).await;
    let mut found = Vec::new();
    for pop in pops {
        found.extend(keys(&answered(pop).await).into_iter().map(str::to_owned));
    }
    found.sort_unstable();
    assert_eq!(found, lanes);
    server.stop().await;
}

/// data 59: a client that went away while it waited is leased nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_went_away_is_leased_nothing() {
    let server = TestServer::start().await;
    let client = server.client();
    for path in ["/queue/q", "/queue/q/partition/p"] {
        let pops: Vec<_> =
            (0..3).map(|_| waiting(&Client::new(server.server.url()), path)).collect();
        parked(&client, "q", 3).await;
        for pop in &pops {
            pop.abort();
        }
        parked(&client, "q", 0).await;
        fill(&client, "q", "p", &[path]).await;
        let leases = "select count(*) from queen.log_consumers where lease_id is not null";
        assert_eq!(number(&server, leases).await, 0);
        let messages = client.pop("q", "").await;
        assert_eq!(keys(&messages), [path]);
        assert_eq!(messages[0]["deliveryAttempt"], 1);
        ack(&client, &messages[0], "completed").await;
    }
    server.stop().await;
}

/// data 58: the end of a batch frees the lane for what was pushed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_completed_batch_wakes_who_waits_for_the_rest() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b"]).await;
    let held = client.pop("q", "").await;
    fill(&client, "q", "p", &["c"]).await;
    let pop = waiting(&client, "/queue/q");
    parked(&client, "q", 1).await;
    let half = ack(&client, &held[0], "completed").await;
    assert_eq!(half["leaseReleased"], false, "{half}");
    let entries = super::ack_all(&client, &[ack_of(&held[1], "completed")]).await;
    assert_eq!(entries[0]["leaseReleased"], true, "{entries:?}");
    assert_eq!(keys(&answered(pop).await), ["c"]);
    parked(&client, "q", 0).await;
    server.stop().await;
}
