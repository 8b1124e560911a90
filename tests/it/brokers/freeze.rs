//! A broker that does nothing for a while, and then goes on as if nothing had happened.

use std::sync::Arc;

use super::freeze_midway;
use crate::support::process::{BrokerProcess, free_port};
use crate::support::{Database, TestServer, eventually, flights, guest};

/// Sum of a counter of hosted cycles with an outcome.
async fn cycles(broker: &BrokerProcess, outcome: &str) -> u64 {
    let text = broker.client.get("/metrics/prometheus").await.text;
    let label = format!("outcome=\"{outcome}\"");
    text.lines()
        .filter(|line| line.starts_with("foldmq_query_cycles_total") && line.contains(&label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// FB-39: a broker is stopped by a signal with a batch under its lease, another one takes over
/// when the lease ends, the first goes on: its commit is refused, and each window is emitted once.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_was_frozen_commits_nothing_stale() {
    let database = Arc::new(Database::new().await);
    let url = database.url();
    let frozen = BrokerProcess::start(free_port(), &["--database-url", &url]).await;
    guest::host_flights(&frozen.client, "hourly").await;
    let items = flights::items();
    let (first, rest) = items.split_at(items.len() / 2);
    for chunk in first.chunks(500) {
        flights::push_surely(&frozen.client, chunk).await;
    }
    let mut more = rest.chunks(500);
    freeze_midway(&frozen, &database, &mut more).await;

    let heir = TestServer::on(Arc::clone(&database)).await;
    let client = heir.client();
    for chunk in more {
        flights::push_surely(&client, chunk).await;
    }
    eventually("the other broker has folded everything", async || {
        (client.status("hourly").await["lag_messages"] == 0).then_some(())
    })
    .await;
    frozen.thaw();
    eventually("the stale commit is refused", async || {
        (cycles(&frozen, "lease_lost").await > 0).then_some(())
    })
    .await;
    flights::check(&client, "hourly").await;
    heir.stop().await;
}
