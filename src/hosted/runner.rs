//! One hosted query on this broker: which partition is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Handle;
use super::cache::Shards;
use crate::broker::Lanes;
use crate::db::group::Start;
use crate::db::hosted::{HostedRow, RunState};
use crate::db::queue::Queue;
use crate::fold::{Manifest, Module, ModuleHash};

/// Longest pause after failures.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// A running query.
pub(super) struct Run {
    pub(super) row: HostedRow,
    pub(super) module: Arc<Module>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) shards: Shards,
    pub(super) stop: CancellationToken,
    /// Undecided failures in a row: timeouts and the like.
    pub(super) strikes: AtomicU32,
}

impl Run {
    /// Messages a batch: the query's wish, bounded by what the module takes.
    pub(super) fn batch(&self) -> i32 {
        let most = i32::try_from(self.manifest.max_batch).unwrap_or(i32::MAX);
        if most > 0 { self.row.batch.min(most) } else { self.row.batch }
    }

    /// How long to wait after the next strike.
    pub(super) fn strike(&self) -> (u32, Duration) {
        let n = self.strikes.fetch_add(1, Ordering::Relaxed) + 1;
        let wait = Duration::from_millis(100) * 2_u32.saturating_pow(n.min(12) - 1);
        (n, wait.min(BACKOFF_MAX))
    }

    /// A batch went well.
    pub(super) fn clean(&self) {
        self.strikes.store(0, Ordering::Relaxed);
    }

    /// Label of the query in metrics.
    pub(super) fn label(&self) -> &str {
        &self.row.query.name
    }
}

/// The start of a hosted query's group, as registered.
pub(super) fn start_of(start: &serde_json::Value) -> Start {
    match start.as_str() {
        Some("latest") => Start::New,
        Some(text) if text != "earliest" => {
            text.parse::<Timestamp>().map_or(Start::All, Start::From)
        }
        _ => Start::All,
    }
}

impl Handle {
    /// Loads the module of a query and runs it until it is stopped.
    pub(super) async fn run_query(self, row: HostedRow, stop: CancellationToken) {
        let mut delay = Duration::from_millis(200);
        let run = loop {
            match self.load(&row, &stop).await {
                Ok(run) => break Arc::new(run),
                Err(cause) => {
                    let text = cause.to_string();
                    tracing::warn!(query = row.query.name, cause = text, "module not loaded");
                    let error = serde_json::json!({"code": "module", "message": text});
                    self.record(&row, &error).await;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => delay = (delay * 2).min(BACKOFF_MAX),
            }
        };
        {
            let mut running = self.shared.running.lock().expect("no holder panics");
            running.insert(run.row.query.no, Arc::clone(&run));
        }
        // Windows may have become due while nobody ran the query.
        self.shared.due.notify_one();
        while !run.stop.is_cancelled() {
            match self.source(&run).await {
                Ok(Some((queue, lanes))) => self.serve(&run, &queue, lanes).await,
                Ok(None) => {
                    // The source queue does not exist yet.
                    self.nap(&run, Duration::from_millis(200)).await;
                }
                Err(cause) => {
                    tracing::debug!(query = run.label(), %cause, "source not read");
                    self.nap(&run, Duration::from_millis(500)).await;
                }
            }
        }
        let mut running = self.shared.running.lock().expect("no holder panics");
        if running.get(&run.row.query.no).is_some_and(|r| Arc::ptr_eq(r, &run)) {
            running.remove(&run.row.query.no);
        }
    }

    async fn load(&self, row: &HostedRow, stop: &CancellationToken) -> anyhow::Result<Run> {
        let hash = ModuleHash::from(row.module_hash);
        let module = self.module(row.query.tenant, hash).await?;
        let (described, params) = (Arc::clone(&module), row.params.clone());
        let permit = self.shared.permits.acquire().await?;
        let manifest = tokio::task::spawn_blocking(move || described.describe(&params)).await??;
        drop(permit);
        Ok(Run {
            row: row.clone(),
            module,
            manifest,
            shards: Shards::default(),
            stop: stop.clone(),
            strikes: AtomicU32::new(0),
        })
    }

    pub(super) async fn nap(&self, run: &Run, time: Duration) {
        tokio::select! {
            () = run.stop.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    /// The source queue and the group's lanes on it.
    async fn source(
        &self,
        run: &Run,
    ) -> Result<Option<(Arc<Queue>, Arc<Lanes>)>, crate::db::Error> {
        let broker = &self.shared.broker;
        let query = &run.row.query;
        let Some(queue) = broker.queue_find(query.tenant, &query.source_queue).await? else {
            return Ok(None);
        };
        let group = query.group();
        // A queue that is born after the registration holds nothing older than the query.
        let registered = broker.group_ensure(queue.no, &group, Start::All, false).await?;
        Ok(registered.map(|g| {
            let lanes = broker.lanes(queue.no, &group, g);
            (queue, lanes)
        }))
    }

    /// Hands claimable partitions to workers until the query stops or its queue changes.
    async fn serve(&self, run: &Arc<Run>, queue: &Arc<Queue>, lanes: Arc<Lanes>) {
        let slots = Arc::new(Semaphore::new(self.shared.config.lanes_per_query.max(1)));
        let all = u32::try_from(self.shared.config.lanes_per_query.max(1)).unwrap_or(u32::MAX);
        let checked = tokio::time::Instant::now();
        while !run.stop.is_cancelled() {
            let woken = lanes.woken();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { break };
            let pids = match self.shared.broker.take_lanes(&lanes, 1).await {
                Ok(pids) => pids,
                Err(cause) => {
                    tracing::debug!(query = run.label(), %cause, "no candidates");
                    drop(slot);
                    self.nap(run, Duration::from_millis(200)).await;
                    break;
                }
            };
            if let Some(pid) = pids.first() {
                let (handle, run, lanes, pid) =
                    (self.clone(), Arc::clone(run), Arc::clone(&lanes), *pid);
                let queue = Arc::clone(queue);
                self.shared.tasks.spawn(async move {
                    handle.work(&run, &queue, &lanes, pid).await;
                    drop(slot);
                });
                continue;
            }
            drop(slot);
            let look = self.shared.broker.next_look(&lanes);
            tokio::select! {
                () = run.stop.cancelled() => {}
                () = woken => {}
                () = tokio::time::sleep_until(look) => {}
            }
            // The queue may have been deleted and made again.
            if checked.elapsed() > Duration::from_secs(1) {
                break;
            }
        }
        // The workers finish before anything else is decided about the query.
        drop(slots.acquire_many(all).await);
    }

    /// Stops a query on every broker until an operator acts.
    pub(super) async fn halt(&self, run: &Run, state: RunState, reason: &str) {
        tracing::warn!(query = run.label(), reason, "hosted query stopped");
        let broker = &self.shared.broker;
        match broker.db().hosted_state(run.row.query.no, state, Some(reason)).await {
            Ok(_) => {
                run.stop.cancel();
                broker.queries_changed();
            }
            Err(cause) => tracing::warn!(%cause, "the stop of a query was not recorded"),
        }
    }

    /// Records a failure, for status and operators.
    pub(super) async fn record(&self, row: &HostedRow, error: &serde_json::Value) {
        let broker = &self.shared.broker;
        if let Err(cause) = broker.db().hosted_failure(row.query.no, error).await {
            tracing::warn!(query = row.query.name, %cause, "a failure was not recorded");
        }
    }
}
