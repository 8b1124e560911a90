//! What all schedules of a run share: a database, two brokers on it, and what was seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Statement;

use super::generate::{Delivery, Pop};
use super::model::Run;
use super::request::{Expected, Request, Settle};
use crate::support::{Client, Database, TestServer};

/// Two brokers on one database.
pub(super) struct World {
    servers: [TestServer; 2],
    pub(super) clients: [Client; 2],
    pub(super) database: Arc<Database>,
}

impl World {
    pub(super) async fn start() -> Self {
        let database = Arc::new(Database::new().await);
        let servers = [
            TestServer::on(Arc::clone(&database)).await,
            TestServer::on(Arc::clone(&database)).await,
        ];
        let clients = [servers[0].client(), servers[1].client()];
        Self { servers, clients, database }
    }

    /// A further broker on the same database.
    pub(super) async fn another(&self) -> TestServer {
        TestServer::with(Arc::clone(&self.database), |config| config.pool_size = 2).await
    }

    pub(super) async fn stop(self) {
        for server in self.servers {
            server.stop().await;
        }
    }
}

/// A connection past all brokers.
pub(super) struct Sql {
    client: tokio_postgres::Client,
    picture: Statement,
    expire: Statement,
}

/// Lets a lease lapse: $1 partition, $2 group.
const EXPIRE: &str = "update queen.log_consumers c set lease_expires_at = \
    clock_timestamp() - interval '1 second' from queen.log_groups g, queen.log_partitions p \
    where c.group_no = g.group_no and c.pid = p.pid and p.id = $1::text::uuid and g.name = $2 \
    and c.lease_id is not null";

impl Sql {
    pub(super) async fn new(database: &Database) -> Self {
        let client = database.sql().await;
        let picture = client.prepare(include_str!("picture.sql")).await.expect("good SQL");
        let expire = client.prepare(EXPIRE).await.expect("good SQL");
        Self { client, picture, expire }
    }

    /// Everything of a schedule's queues that must equal the model, partition by partition.
    pub(super) async fn picture(&self, queues: &[String; 2], group: &str) -> Value {
        let row = self.client.query_one(&self.picture, &[&queues[0], &queues[1], &group]).await;
        row.expect("the store answers").get(0)
    }

    pub(super) async fn expire(&self, partition: &str, group: &str) {
        let n = self.client.execute(&self.expire, &[&partition, &group]).await;
        assert_eq!(n.expect("the store answers"), 1, "a lease to lapse");
    }
}

/// What every run must see often, however fast the machine is.
const KINDS: [&str; 32] = [
    "Single",
    "Roaming",
    "Restarting",
    "restart",
    "expire",
    "pop again",
    "pop lost",
    "pop pinned empty",
    "pop pinned filled",
    "pop wildcard filled",
    "push: duplicate",
    "push together",
    "push lost",
    "ack: dead",
    "ack: lease",
    "ack: committed",
    "ack: unresolv",
    "ack together",
    "ack lost",
    "transaction: good",
    "transaction: ack_rejected",
    "transaction: duplicate",
    "transaction lost",
    "cycle full: good",
    "cycle full: lease",
    "cycle full lost",
    "cycle partial: good",
    "cycle partial lost",
    "cycle nack: good",
    "cycle null: good",
    "extend: good",
    "lost after it took effect",
];

/// How often each kind of thing was seen.
#[derive(Debug, Default)]
pub(super) struct Stats(pub(super) BTreeMap<String, usize>);

impl Stats {
    pub(super) fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    /// Kinds that were hardly seen in a run of so many schedules.
    pub(super) fn rare(&self, schedules: u64) -> Vec<&str> {
        let least = usize::try_from(schedules / 40).unwrap_or(usize::MAX);
        let seen = |kind: &&&str| self.0.get(**kind).copied().unwrap_or(0) < least;
        KINDS.iter().filter(seen).copied().collect()
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (what, n) in other.0 {
            *self.0.entry(what).or_default() += n;
        }
    }

    pub(super) fn pop(&mut self, pop: &Pop, runs: &[Run]) {
        let route = if pop.lane.is_some() { "pinned" } else { "wildcard" };
        self.count(&format!("pop {route} {}", if runs.is_empty() { "empty" } else { "filled" }));
        if runs.iter().any(|run| run.attempt > 1) {
            self.count("pop again");
        }
        if pop.lost && !runs.is_empty() {
            self.count("pop lost");
        }
    }

    pub(super) fn request(&mut self, request: &Request, first: &[Expected], mode: Delivery) {
        let mode = match mode {
            Delivery::Once => "once",
            Delivery::Twice => "twice",
            Delivery::Together => "together",
            Delivery::Lost(_) => "lost",
        };
        let kind = match request {
            Request::Push(_) => "push",
            Request::Ack(_) => "ack",
            Request::Transact(_) => "transaction",
            Request::Cycle(cycle) => match &cycle.settle {
                Settle::Nothing => "cycle null",
                Settle::Full { .. } => "cycle full",
                Settle::Partial { .. } => "cycle partial",
                Settle::Nack { .. } => "cycle nack",
            },
            Request::Extend { .. } => "extend",
        };
        self.count(&format!("{kind} {mode}"));
        for expected in first {
            let outcome = match expected {
                Expected::Pushed { duplicate: true, .. } => "duplicate",
                Expected::Pushed { .. } => "queued",
                Expected::Acked(_, acked) if acked.dead => "dead",
                Expected::Acked(_, acked) => acked.error.unwrap_or("good"),
                Expected::Transacted(Ok(_)) | Expected::Cycled(_, Ok(_)) => "good",
                Expected::Transacted(Err(reasons)) => reasons[0],
                Expected::Cycled(_, Err(word)) => word,
                Expected::Extended { lanes, .. } if lanes.is_empty() => "nothing",
                Expected::Extended { .. } => "good",
            };
            self.count(&format!("{kind}: {outcome}"));
        }
    }
}
