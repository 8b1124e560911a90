//! The broker under measurement, the direct way to its database, and the names of what is made.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

use super::wire::Wire;
use crate::broker::implicit_options;
use crate::db::queue::{NewPartition, Queue};
use crate::db::{self, Db};
use crate::server::{Config, Server};
use crate::types::id::{PartitionId, TenantId};

/// Partitions of each queue.
pub(super) const LANES: usize = 16;
/// HTTP connections of each measurement but the workers'.
pub(super) const CONNECTIONS: usize = 16;
/// Queue that the example module writes to.
const MODULE_SINK: &str = "flights.hourly";

/// A queue with its partitions.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) queue: Queue,
    /// Names and ids, `lane00` first.
    pub(super) lanes: Vec<(String, PartitionId)>,
}

impl Target {
    /// The lanes of one of `of` drivers: no two drivers share one.
    pub(super) fn share(&self, driver: usize, of: usize) -> Vec<(String, PartitionId)> {
        self.lanes.iter().skip(driver).step_by(of).cloned().collect()
    }
}

#[derive(Default)]
struct Made {
    queues: Vec<String>,
    queries: Vec<String>,
    module: Option<String>,
}

/// Everything that a measurement needs.
pub(super) struct Stage {
    id: String,
    server: Server,
    direct: Db,
    scratch: Option<PathBuf>,
    made: Mutex<Made>,
}

impl Stage {
    /// Starts the broker. `scratch` is a folder that is removed at the end, with the store in it.
    pub(super) async fn start(
        id: String,
        config: Config,
        scratch: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let server = Server::start(config).await?;
        // The same settings and the same number of connections as the broker's own pool.
        let settings: db::Config = server.broker().db().config().clone();
        let direct = match Db::connect(settings).await {
            Ok(direct) => direct,
            Err(cause) => {
                server.stop().await?;
                return Err(cause.into());
            }
        };
        Ok(Self { id, server, direct, scratch, made: Mutex::default() })
    }

    /// The broker.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// The database without the broker: the functions of `crate::db` on a pool of their own.
    pub(super) fn direct(&self) -> &Db {
        &self.direct
    }

    /// Connections of the broker's pool, and of a direct driver.
    pub(super) fn pool_size(&self) -> usize {
        self.direct.config().pool_size
    }

    /// A bare connection to the database, with the settings of the broker's.
    pub(super) async fn client(&self) -> anyhow::Result<Client> {
        let mut config = self.direct.config().postgres.clone();
        let options = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("{options} -c jit=off"));
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(async move {
            if let Err(cause) = connection.await {
                tracing::debug!(%cause, "a connection of the bench ended");
            }
        });
        Ok(client)
    }

    /// An HTTP connection to the broker.
    pub(super) async fn wire(&self) -> anyhow::Result<Wire> {
        Wire::open(self.server.addr()).await
    }

    /// `n` HTTP connections.
    pub(super) async fn wires(&self, n: usize) -> anyhow::Result<Vec<Wire>> {
        let mut wires = Vec::with_capacity(n);
        for _ in 0..n {
            wires.push(self.wire().await?);
        }
        Ok(wires)
    }

    /// A name of this run.
    pub(super) fn name(&self, name: &str) -> String {
        format!("bench-{}.{name}", self.id)
    }

    /// Makes a queue with so many partitions; deleted at the end.
    pub(super) async fn queue(&self, name: &str, lanes: usize) -> anyhow::Result<Target> {
        let name = self.name(name);
        self.note(|made| made.queues.push(name.clone()));
        let options = implicit_options();
        let queue = self.direct.queue_ensure(TenantId::DEFAULT, &name, "", "", &options).await?;
        let lanes: Vec<(String, PartitionId)> = (0..lanes)
            .map(|lane| format!("lane{lane:02}"))
            .map(|lane| (lane.clone(), queue.partition_id(&lane)))
            .collect();
        let partitions: Vec<NewPartition> = lanes
            .iter()
            .map(|(name, id)| NewPartition { queue: queue.no, id: *id, name: name.clone() })
            .collect();
        self.direct.partitions_ensure(&partitions).await?;
        Ok(Target { queue, lanes })
    }

    /// Registers a query of outside workers; gives its full name and its wire id.
    pub(super) async fn outside_query(
        &self,
        name: &str,
        source: &str,
    ) -> anyhow::Result<(String, String)> {
        let body = json!({"name": self.name(name), "source_queue": source, "config_hash": "bench"});
        self.register(name, body).await
    }

    /// Registers a hosted query, paused.
    pub(super) async fn hosted_query(
        &self,
        name: &str,
        source: &str,
        batch: i64,
    ) -> anyhow::Result<String> {
        let module = self.made.lock().expect("no holder panics").module.clone();
        let body = json!({
            "name": self.name(name), "source_queue": source, "module": module, "batch": batch,
            "paused": true,
        });
        Ok(self.register(name, body).await?.0)
    }

    async fn register(&self, name: &str, body: Value) -> anyhow::Result<(String, String)> {
        let name = self.name(name);
        self.note(|made| made.queries.push(name.clone()));
        let answer = self.wire().await?.json("POST", "/streams/v1/queries", &body).await?;
        let id = answer["query_id"].as_str().context("the registration names no query")?;
        Ok((name, id.to_owned()))
    }

    /// Pauses or resumes a hosted query.
    pub(super) async fn steer(&self, query: &str, verb: &str) -> anyhow::Result<()> {
        let path = format!("/streams/v1/queries/{query}/{verb}");
        self.wire().await?.json("POST", &path, &json!({})).await.map(drop)
    }

    /// Uploads the example fold, changed to write to a queue of this run: other queues of a given
    /// database stay as they are.
    pub(super) async fn upload(&self, module: &[u8]) -> anyhow::Result<()> {
        let sink = format!("bench-{}.o", self.id);
        let module = renamed(module, MODULE_SINK, &sink).context(
            "the module is not the example fold: it does not write to the queue flights.hourly",
        )?;
        self.note(|made| made.queues.push(sink));
        let mut wire = self.wire().await?;
        let answer = wire.call("POST", "/streams/v1/modules", &module).await?;
        let status = if answer.status == 201 { 201 } else { 200 };
        let answer: Value = serde_json::from_slice(answer.expect(status)?)?;
        let hash = answer["module"].as_str().context("the upload names no module")?.to_owned();
        self.note(|made| made.module = Some(hash));
        Ok(())
    }

    fn note(&self, change: impl FnOnce(&mut Made)) {
        change(&mut self.made.lock().expect("no holder panics"));
    }

    /// Deletes what was made and stops the broker.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        let swept = if self.scratch.is_some() { Ok(()) } else { self.sweep().await };
        self.direct.close();
        self.server.stop().await?;
        if let Some(folder) = &self.scratch {
            remove(folder)?;
        }
        swept
    }

    async fn sweep(&self) -> anyhow::Result<()> {
        let made = std::mem::take(&mut *self.made.lock().expect("no holder panics"));
        let mut wire = self.wire().await?;
        let queries = made.queries.iter().map(|name| format!("/streams/v1/queries/{name}"));
        let module = made.module.iter().map(|hash| format!("/streams/v1/modules/{hash}"));
        let queues = made.queues.iter().map(|name| format!("/api/v1/resources/queues/{name}"));
        let mut left = Vec::new();
        for path in queries.chain(module).chain(queues) {
            let gone = wire.call("DELETE", &path, b"").await;
            if !gone.is_ok_and(|answer| matches!(answer.status, 200 | 204 | 404)) {
                left.push(path);
            }
        }
        ensure!(left.is_empty(), "could not be deleted: {}", left.join(", "));
        Ok(())
    }
}

/// Removes a scratch folder, and the folder above it if nothing else is there.
pub(super) fn remove(folder: &std::path::Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        other => other.with_context(|| format!("cannot remove {}", folder.display()))?,
    }
    if let Some(above) = folder.parent() {
        // Another bench may still be at work there.
        let _ = std::fs::remove_dir(above);
    }
    Ok(())
}

/// The module with every occurrence of a text replaced by another of the same length.
fn renamed(module: &[u8], from: &str, to: &str) -> Option<Vec<u8>> {
    assert_eq!(from.len(), to.len(), "the bytes behind stay where they are");
    let mut module = module.to_vec();
    let mut found = false;
    let mut at = 0;
    while let Some(step) = module[at..].windows(from.len()).position(|w| w == from.as_bytes()) {
        at += step;
        module[at..at + to.len()].copy_from_slice(to.as_bytes());
        found = true;
    }
    found.then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_renamed_wherever_it_stands() {
        let module = b"..flights.hourly.flights.hourly";
        let other = renamed(module, MODULE_SINK, "bench-012345.o").expect("found");
        assert_eq!(other, b"..bench-012345.o.bench-012345.o");
        assert_eq!(renamed(b"nothing", MODULE_SINK, "bench-012345.o"), None);
    }
}
