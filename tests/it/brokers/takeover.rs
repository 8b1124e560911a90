//! Brokers that die: others take their work over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldmq::types::limits::HOSTED_LEASE_MS;
use serde_json::json;

use super::freeze_midway;
use crate::support::process::{BrokerProcess, free_port};
use crate::support::{Database, TestServer, eventually, flights, guest, tell};

/// A broker is killed in the middle of its folds: another one takes its partitions over when the
/// leases end, and the windows are exact.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_brokers_folds_are_taken_over() {
    let database = Arc::new(Database::new().await);
    let url = database.url();
    let mut doomed = BrokerProcess::start(free_port(), &["--database-url", &url]).await;
    guest::host_flights(&doomed.client, "hourly").await;
    let items = flights::items();
    let (first, rest) = items.split_at(items.len() / 2);
    for chunk in first.chunks(500) {
        flights::push_surely(&doomed.client, chunk).await;
    }
    let mut more = rest.chunks(500);
    freeze_midway(&doomed, &database, &mut more).await;
    doomed.kill();
    let killed = Instant::now();
    let heir = TestServer::on(database).await;
    let client = heir.client();
    for chunk in more {
        flights::push_surely(&client, chunk).await;
    }
    eventually("everything is folded", async || {
        (client.status("hourly").await["lag_messages"] == 0).then_some(())
    })
    .await;
    let took = killed.elapsed();
    tell(&format!("taken over and folded after {took:?}"));
    assert!(took < 2 * Duration::from_millis(HOSTED_LEASE_MS.unsigned_abs()), "{took:?}");
    flights::check(&client, "hourly").await;
    heir.stop().await;
}

/// FB-50: what a killed broker had leased comes back when the lease ends, at another broker and at
/// the one that starts again in its place.
#[tokio::test(flavor = "multi_thread")]
async fn leases_of_a_killed_broker_end_by_their_time() {
    let database = Arc::new(Database::new().await);
    let url = database.url();
    let (port, args) = (free_port(), ["--database-url", url.as_str()]);
    let mut broker = BrokerProcess::start(port, &args).await;
    let other = TestServer::on(Arc::clone(&database)).await;
    let pop = "batch=10&leaseSeconds=2&consumerGroup=g&subscriptionMode=all";
    for round in 0..2 {
        broker.client.push("q", "p", &[json!(round)]).await;
        let popped = broker.client.pop("q", pop).await;
        assert_eq!(popped.len(), 1);
        let leased = Instant::now();
        broker.kill();
        broker = BrokerProcess::start(port, &args).await;
        let again = if round == 0 { other.client() } else { broker.client.clone() };
        assert_eq!(again.pop("q", pop).await.len(), 0, "the lease lives");
        let messages = again.pop("q", &format!("{pop}&wait=true&timeout=20000")).await;
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!(messages[0]["data"], round);
        assert!(leased.elapsed() < Duration::from_secs(5), "after {:?}", leased.elapsed());
        // What the dead broker gave out is worth nothing any more.
        let stale = json!({"transactionId": popped[0]["transactionId"], "status": "completed",
            "partitionId": popped[0]["partitionId"], "leaseId": popped[0]["leaseId"],
            "consumerGroup": "g"});
        let refused = again.post("/api/v1/ack", &stale).await.expect(200);
        assert_eq!(refused[0]["success"], false, "{refused}");
        let mut good = stale;
        good["leaseId"] = messages[0]["leaseId"].clone();
        let acked = again.post("/api/v1/ack", &good).await.expect(200);
        assert_eq!(acked[0]["success"], true, "{acked}");
    }
    assert_eq!(broker.terminate().await, Some(0));
    other.stop().await;
}

/// FB-37: a fold's state outlives its brokers: two of them are replaced in turn, and every key is
/// counted on from where it was.
#[tokio::test(flavor = "multi_thread")]
async fn state_outlives_the_brokers() {
    let database = Arc::new(Database::new().await);
    let mut servers =
        [TestServer::on(Arc::clone(&database)).await, TestServer::on(Arc::clone(&database)).await];
    let params = json!({"window_ms": 3_600_000, "event_time": true});
    guest::host_probe(&servers[0].client(), "ids", "q", json!({"params": params})).await;
    let mut pushed = 0;
    for round in 0..6 {
        for (i, server) in servers.iter().enumerate() {
            let batch: Vec<_> =
                (0..20).map(|n| json!({"key": format!("k{}", n % 5), "n": 1, "at": 1})).collect();
            server.client().push("q", &format!("p{i}"), &batch).await;
            pushed += 20;
        }
        // One of them goes in the middle of it.
        let fresh = TestServer::on(Arc::clone(&database)).await;
        std::mem::replace(&mut servers[round % 2], fresh).stop().await;
    }
    let client = servers[0].client();
    let status = eventually("everything is folded", async || {
        let status = client.status("ids").await;
        (status["messages"] == pushed && status["lag_messages"] == 0).then_some(status)
    })
    .await;
    assert_eq!(status["failures"], 0, "{status}");
    let sql = database.sql().await;
    let rows = sql
        .query(
            "select key, (value->'acc'->>'count')::int, (value->'acc'->>'sum')::int
               from queen_streams.state where key <> '__wm__'",
            &[],
        )
        .await
        .expect("the state");
    assert_eq!(rows.len(), 2 * 5, "one row a key and partition");
    for row in rows {
        let (key, count, sum): (String, i32, i32) = (row.get(0), row.get(1), row.get(2));
        assert_eq!((count, sum), (24, 24), "{key:?}");
    }
    for server in servers {
        server.stop().await;
    }
}
