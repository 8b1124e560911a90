//! Several brokers on one database.

mod abort;
mod crowd;
mod freeze;
mod leases;
mod takeover;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::support::process::BrokerProcess;
use crate::support::{Client, Database, TestServer, eventually, flights};

/// Brokers on one database, with a client of each.
struct Brokers {
    servers: Vec<TestServer>,
    clients: Vec<Client>,
}

impl Brokers {
    async fn start(n: usize) -> Self {
        let database = Arc::new(Database::new().await);
        let mut servers = Vec::new();
        for _ in 0..n {
            servers.push(TestServer::on(Arc::clone(&database)).await);
        }
        let clients = servers.iter().map(TestServer::client).collect();
        Self { servers, clients }
    }

    /// One of the clients, in turn.
    fn client(&self, i: usize) -> &Client {
        &self.clients[i % self.clients.len()]
    }

    async fn stop(self) {
        for server in self.servers {
            server.stop().await;
        }
    }
}

/// Waits until pops are parked on a queue.
async fn parked(client: &Client, queue: &str, n: usize) {
    let line = format!("queen_parked_long_polls{{queue=\"{queue}\"}} {n}");
    eventually("pops are parked", async || {
        let text = client.get("/metrics/prometheus").await.text;
        text.lines().any(|l| l == line).then_some(())
    })
    .await;
}

/// Milliseconds since the message was committed.
fn age_ms(message: &Value) -> i64 {
    let at: Timestamp = message["createdAt"].as_str().expect("text").parse().expect("an instant");
    Timestamp::now().as_millisecond() - at.as_millisecond()
}

/// Stops a broker by a signal in the middle of its folds: leases of its live on, and calls that it
/// sent before did not settle them. Pushes `more` as long as it finds nothing to do.
async fn freeze_midway<'a>(
    broker: &BrokerProcess,
    database: &Database,
    more: &mut impl Iterator<Item = &'a [Value]>,
) {
    let sql = database.sql().await;
    let leases = "select count(*) from queen.log_consumers
                   where lease_expires_at > clock_timestamp() + interval '5 s'";
    let live = async || sql.query_one(leases, &[]).await.expect("the cursors").get::<_, i64>(0);
    eventually("the broker is stopped in the middle of a batch", async || {
        broker.freeze();
        tokio::time::sleep(Duration::from_millis(200)).await;
        if live().await > 0 {
            return Some(());
        }
        broker.thaw();
        flights::push_surely(&broker.client, more.next().expect("more of the feed")).await;
        None
    })
    .await;
}
