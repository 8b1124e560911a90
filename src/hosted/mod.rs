//! Folds that the server runs itself.
//!
//! Every broker runs every query that is `running`; ordinary leases divide the partitions among
//! them. A batch becomes an ordinary cycle and goes through the broker's one commit path. What is
//! cached of a shard is fenced by the shard's version, so that it may be stale but never wrong.

mod batch;
mod cache;
mod deadline;
mod guest;
mod modules;
mod poison;
mod registry;
mod runner;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::Broker;
use crate::fold::Engine;
use crate::types::id::QueryNo;

pub use deadline::{FlushError, Flushed};
pub use modules::{ModuleError, Uploaded};
pub use registry::{HostedRegistration, RegisterError, config_hash};

use runner::Run;

/// Settings of hosted folds.
#[derive(Clone, Debug)]
pub struct Config {
    /// Guest calls at once.
    pub calls_at_once: usize,
    /// Partitions of one query that are worked on at once.
    pub lanes_per_query: usize,
}

impl Default for Config {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self { calls_at_once: cores.saturating_sub(1).max(1), lanes_per_query: 16 }
    }
}

struct Shared {
    broker: Broker,
    engine: Engine,
    config: Config,
    permits: Semaphore,
    running: Mutex<HashMap<QueryNo, Arc<Run>>>,
    due: Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The hosted folds of this broker. Clones share everything.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Starts running what is registered.
    #[must_use]
    pub fn start(broker: Broker, engine: Engine, config: Config) -> Self {
        let handle = Self {
            shared: Arc::new(Shared {
                broker,
                engine,
                permits: Semaphore::new(config.calls_at_once.max(1)),
                config,
                running: Mutex::default(),
                due: Notify::new(),
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
            }),
        };
        let tasks = &handle.shared.tasks;
        tasks.spawn(handle.clone().registry_loop());
        tasks.spawn(handle.clone().deadline_loop());
        handle
    }

    /// The engine that runs modules.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Takes no new batches, finishes running ones, gives leases back.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        for run in self.running().values() {
            run.stop.cancel();
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    fn running(&self) -> HashMap<QueryNo, Arc<Run>> {
        self.shared.running.lock().expect("no holder panics").clone()
    }

    fn running_query(&self, query: QueryNo) -> Option<Arc<Run>> {
        self.shared.running.lock().expect("no holder panics").get(&query).cloned()
    }

    /// Sleeps unless the folds are stopped first; whether to go on.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.shared.stop.cancelled() => false,
            () = tokio::time::sleep(time) => true,
        }
    }
}
