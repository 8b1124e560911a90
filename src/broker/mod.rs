//! What can be done with the broker: one method an operation, each in its own file.
//!
//! Meaning lives here; SQL below in `db`, wire shapes above in `http`. Nothing kept in memory is
//! needed by another broker, and everything can be read again from the store.

mod ack;
mod appender;
mod claim;
mod committer;
mod cycle;
mod dead_letter;
mod dedup;
mod directory;
mod group;
mod lanes;
mod lease;
mod maintenance;
mod message;
mod pop;
mod progress;
mod push;
mod query;
mod queue;
mod resource;
mod retention;
mod state;
mod trace;
mod transaction;
mod wake;

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::db::Db;
use crate::db::queue::{Queue, QueueOptions};
use crate::log::Seal;
use crate::telemetry::Metrics;
use crate::types::id::{Pid, QueueNo};

pub use ack::{Ack, AckError, AckResult};
pub use appender::{AppendError, Stored};
pub use claim::{ClaimedBatch, ClaimedMessage, LaneClaim};
pub use cycle::CycleError;
pub use dead_letter::{Destination, Replay, ReplayError};
pub use directory::Partition;
pub use group::{SeekError, SeekTo};
pub use lanes::Lanes;
pub use lease::Extended;
pub use maintenance::Maintenance;
pub use message::{ListedMessage, Listing, MessageDetail, MessageFilter};
pub use pop::{Pop, PopError, PopScope, Popped, PoppedMessage, start_of};
pub use progress::{MessageStatus, Progress};
pub use push::{PushError, PushItem, PushOutcome, Pushed};
pub use query::{QueryError, RegisterOutcome};
pub use queue::{Configure, ConfigureError, ConfigureMode, implicit_options};
pub use resource::{Depth, Overview, QueueDetail};
pub use state::StateError;
pub use trace::Trace;
pub use transaction::{TransactError, TransactPush, TransactResult, TransactStep};

/// Settings of the broker itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// Appends that are committed at once.
    pub append_workers: usize,
    /// Commits of cycles that run at once.
    pub cycle_workers: usize,
    /// Time between removals of messages by age.
    pub retention_every: std::time::Duration,
    /// Keys of payloads at rest.
    pub seal: Seal,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            append_workers: 2,
            cycle_workers: 3,
            retention_every: std::time::Duration::from_secs(5),
            seal: Seal::default(),
        }
    }
}

/// Something that hosted folds want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Registrations or states of hosted queries changed, here or elsewhere.
    QueriesChanged,
}

struct Inner {
    db: Db,
    instance: u64,
    implicit: QueueOptions,
    seal: Seal,
    switches: maintenance::Switches,
    directory: directory::Directory,
    dedup: dedup::Dedup,
    appender: appender::Appender,
    committer: committer::Committer,
    lanes: lanes::LaneTable,
    leases: lease::Leases,
    wake: wake::Wake,
    figures: resource::Figures,
    events: broadcast::Sender<Event>,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Inner {
    /// Messages were appended to a partition: tell who waits, here and elsewhere.
    fn appended(&self, queue: QueueNo, pid: Pid) {
        self.lanes.appended(queue, pid);
        self.wake.appended(queue, pid);
    }

    /// A group released a partition.
    fn released(&self, queue: QueueNo, group: &str, pid: Pid) {
        self.lanes.released(queue, group, pid);
        self.wake.released(queue, group, pid);
    }

    /// A payload as it is stored in a queue. A cipher that fails is counted, never silent, and the
    /// payload is stored plain (streams B2).
    fn sealed(&self, queue: &Queue, payload: String) -> String {
        if !queue.options.encryption_enabled || !self.seal.seals() {
            return payload;
        }
        self.seal.seal(&payload).unwrap_or_else(|| {
            self.metrics.cipher_failures.inc();
            tracing::warn!(queue = queue.name, "a payload could not be sealed: stored plain");
            payload
        })
    }

    fn event(&self, event: Event) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }
}

/// The broker. Clones share everything.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
}

impl Broker {
    /// Starts the broker's workers on a migrated store.
    #[must_use]
    pub fn start(db: Db, config: &Config, metrics: Arc<Metrics>) -> Self {
        let broker = Self {
            inner: Arc::new(Inner {
                db,
                instance: rand::random(),
                implicit: implicit_options(),
                seal: config.seal.clone(),
                switches: maintenance::Switches::default(),
                directory: directory::Directory::default(),
                dedup: dedup::Dedup::default(),
                appender: appender::Appender::default(),
                committer: committer::Committer::default(),
                lanes: lanes::LaneTable::default(),
                leases: lease::Leases::default(),
                wake: wake::Wake::default(),
                figures: resource::Figures::default(),
                events: broadcast::channel(64).0,
                metrics,
                tasks: TaskTracker::new(),
                stop: CancellationToken::new(),
            }),
        };
        let tasks = &broker.inner.tasks;
        for _ in 0..config.append_workers.max(1) {
            tasks.spawn(broker.clone().append_loop());
        }
        for _ in 0..config.cycle_workers.max(1) {
            tasks.spawn(broker.clone().commit_loop());
        }
        let (heard, hears) = mpsc::channel(1024);
        let (db, stop) = (broker.inner.db.clone(), broker.inner.stop.clone());
        tasks.spawn(async move { db.listen(heard, stop).await });
        tasks.spawn(broker.clone().hear_loop(hears));
        tasks.spawn(broker.clone().wake_loop());
        tasks.spawn(broker.clone().doubt_loop());
        tasks.spawn(broker.clone().maintenance_loop());
        tasks.spawn(broker.clone().retention_loop(config.retention_every));
        broker
    }

    /// The store, for operations that are one call of it.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.inner.db
    }

    /// The metrics of the process.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// Events for hosted folds.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.inner.events.subscribe()
    }

    /// Tells hosted folds, here and on other brokers, that queries changed.
    pub fn queries_changed(&self) {
        self.inner.directory.forget_queries();
        self.inner.event(Event::QueriesChanged);
        self.inner.wake.queries();
    }

    /// Whether the broker is stopping; long polls answer at once then.
    #[must_use]
    pub fn stopping(&self) -> &CancellationToken {
        &self.inner.stop
    }

    /// Wakes parked pops and refuses new waits; running operations go on.
    pub fn begin_stop(&self) {
        self.inner.stop.cancel();
    }

    /// Finishes what was taken in, then ends the workers.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.appender.close();
        self.inner.committer.close();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}
