//! Pop: leased batches for outside workers, with long poll.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::claim::{ClaimedBatch, Delivery};
use super::lanes::Lanes;
use super::{Broker, Maintenance, Partition};
use crate::db::Error;
use crate::db::claim::{Claim, LaneOutcome};
use crate::db::group::{Group, Start};
use crate::db::queue::Queue;
use crate::types::id::{Pid, QUEUE_MODE, TenantId};
use crate::types::limits::{POP_BATCH_MAX, POP_PARTITIONS_MAX};

/// Where a pop looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopScope {
    /// Any partitions of one queue.
    Queue(String),
    /// One named partition.
    Partition(String, String),
    /// Every queue with these labels; an empty one is no filter.
    Discovery {
        /// Namespace.
        namespace: String,
        /// Task.
        task: String,
    },
}

/// A pop with the contract's defaults applied.
#[derive(Clone, Debug)]
pub struct Pop {
    /// Where to look.
    pub scope: PopScope,
    /// Messages in total.
    pub batch: i32,
    /// Partitions at most; `None` where the client sets no cap.
    pub partitions: Option<i32>,
    /// Settle at delivery.
    pub auto_ack: bool,
    /// How long to wait for a message; `None` answers at once.
    pub wait: Option<Duration>,
    /// Length of the lease, s; `None` for the queue's.
    pub lease_s: Option<i64>,
    /// Consumer group.
    pub group: String,
    /// Where the group starts if this is its first contact.
    pub start: Start,
    /// Last-value delivery asked for.
    pub conflation: bool,
}

/// One delivered message.
#[derive(Clone, Debug)]
pub struct PoppedMessage {
    /// The message with offset and commit time.
    pub message: super::ClaimedMessage,
    /// Its partition.
    pub partition: Arc<Partition>,
    /// How often the batch at this place was claimed.
    pub attempt: i32,
}

/// What a pop delivers.
#[derive(Clone, Debug, Default)]
pub struct Popped {
    /// Lease of all messages; `None` when settled at delivery.
    pub lease: Option<Uuid>,
    /// Partition by partition, ascending offsets inside each.
    pub messages: Vec<PoppedMessage>,
    /// Partitions that yielded something.
    pub partitions: usize,
    /// Last-value delivery was applied.
    pub conflation: bool,
    /// The request disagreed with the stored policy.
    pub conflict: bool,
}

/// Why a pop failed.
#[derive(Debug, thiserror::Error)]
pub enum PopError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// The partition of a claim is not known any more.
    #[error("a claimed partition was deleted")]
    Gone,
}

struct Source {
    queue: Arc<Queue>,
    group: Group,
    lanes: Arc<Lanes>,
}

impl Broker {
    /// Delivers a batch, waiting for one if asked to. Safe to drop: what was claimed for a caller
    /// that has gone is given back at once.
    ///
    /// # Errors
    /// When the store fails; an empty answer is no error.
    pub async fn pop(&self, tenant: TenantId, pop: &Pop) -> Result<Popped, PopError> {
        let metrics = &self.inner.metrics;
        metrics.requests.with_label_values(&["pop"]).inc();
        let deadline = pop.wait.map(|wait| Instant::now() + wait);
        let mut parked = Parked::default();
        let mut hold = Hold { deadline, done: false };
        loop {
            let any = self.inner.lanes.any();
            tokio::pin!(any);
            any.as_mut().enable();
            let sources = self.sources(tenant, pop).await?;
            let single = match (&pop.scope, sources.first()) {
                (PopScope::Queue(_), Some(source)) => Some(Arc::clone(&source.lanes)),
                // A pinned pop would swallow wake-ups of others, and discovery must hear of queues
                // that are born while it waits.
                _ => None,
            };
            let pinned = self.pinned(pop, &sources);
            let pin = pinned.as_ref().map(|(lanes, pid)| lanes.pin(*pid));
            let pin_woken = pin.as_ref().map(super::lanes::Pin::woken);
            let woken = single.as_ref().map(|lanes| lanes.woken());
            tokio::pin!(pin_woken, woken);
            if let Some(woken) = woken.as_mut().as_pin_mut() {
                woken.enable();
            }
            if let Some(woken) = pin_woken.as_mut().as_pin_mut() {
                woken.enable();
            }

            // A pop that was parked when pop maintenance began goes on waiting, and takes nothing.
            let mut found = if self.in_maintenance(Maintenance::Pop) {
                Popped::default()
            } else {
                self.pop_once(pop, &sources, pinned.as_ref(), &mut hold).await?
            };
            found.conflation = !sources.is_empty() && sources.iter().all(|s| s.group.conflation);
            found.conflict = sources.iter().any(|s| s.group.conflation != pop.conflation);
            let stopping = self.inner.stop.is_cancelled();
            let now = Instant::now();
            let out_of_time = deadline.is_none_or(|deadline| now >= deadline);
            if !found.messages.is_empty() || out_of_time || stopping {
                if let Some(lanes) = &single {
                    lanes.pass_on();
                }
                let n = found.messages.len() as u64;
                metrics.messages.with_label_values(&["pop"]).inc_by(n);
                return Ok(found);
            }

            parked.enter(metrics, &pop.scope);
            let look = match (&single, &pinned) {
                (_, Some((lanes, pid))) => lanes.next_look_at(*pid, self.inner.lanes.interval()),
                (Some(lanes), None) => self.next_look(lanes),
                // Several queues: whatever happens wakes, and their lease ends are looked up.
                _ => now + Duration::from_millis(500),
            };
            let until = deadline.unwrap_or(look).min(look.max(now + Duration::from_millis(2)));
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.inner.stop.cancelled() => {}
                Some(()) = optional(pin_woken.as_mut()) => {}
                Some(()) = optional(woken.as_mut()) => {}
                () = any, if single.is_none() && pinned.is_none() => {}
            }
        }
    }

    /// Queues that the pop looks at, with the group registered on each.
    async fn sources(&self, tenant: TenantId, pop: &Pop) -> Result<Vec<Source>, Error> {
        let inner = &self.inner;
        let queues = match &pop.scope {
            PopScope::Queue(name) | PopScope::Partition(name, _) => {
                vec![inner.directory.queue_ensure(&inner.db, tenant, name, &inner.implicit).await?]
            }
            PopScope::Discovery { namespace, task } => {
                let found = inner.db.queue_match(tenant, namespace, task).await?;
                found.into_iter().map(Arc::new).collect()
            }
        };
        let mut sources = Vec::with_capacity(queues.len());
        for queue in queues {
            let start = if pop.group == QUEUE_MODE { Start::All } else { pop.start };
            let group = inner
                .directory
                .group(&inner.db, queue.no, &pop.group, start, pop.conflation)
                .await?;
            match group {
                Some(group) => {
                    let lanes = inner.lanes.get(queue.no, &pop.group, group.no);
                    sources.push(Source { queue, group, lanes });
                }
                // Deleted since it was remembered: the next look creates it again.
                None => inner.directory.forget_queue(queue.no),
            }
        }
        Ok(sources)
    }

    fn pinned(&self, pop: &Pop, sources: &[Source]) -> Option<(Arc<Lanes>, Pid)> {
        let PopScope::Partition(_, partition) = &pop.scope else { return None };
        let source = sources.first()?;
        Some((Arc::clone(&source.lanes), source.queue.partition_id(partition).pid()))
    }

    /// One look at every source.
    async fn pop_once(
        &self,
        pop: &Pop,
        sources: &[Source],
        pinned: Option<&(Arc<Lanes>, Pid)>,
        hold: &mut Hold,
    ) -> Result<Popped, PopError> {
        let lease = Uuid::now_v7();
        let messages = pop.batch.clamp(1, POP_BATCH_MAX);
        let partitions = match pop.partitions {
            Some(n) if n > 0 => n.min(POP_PARTITIONS_MAX),
            Some(_) => POP_PARTITIONS_MAX,
            None if pop.conflation => messages.min(POP_PARTITIONS_MAX),
            None => 1,
        };
        let mut look = Look {
            pop,
            lease,
            delivery: Delivery::new(&self.inner, lease),
            popped: Popped { lease: (!pop.auto_ack).then_some(lease), ..Popped::default() },
            messages,
            partitions,
        };
        for source in sources {
            let pinned = pinned.map(|(_, pid)| *pid);
            if let Err(cause) = self.pop_from(source, pinned, &mut look, hold).await {
                // What was settled at delivery must be delivered: nobody would get it again.
                if !pop.auto_ack || look.popped.messages.is_empty() {
                    return Err(cause);
                }
                tracing::warn!(cause = crate::telemetry::chain(&cause), "a pop was cut short");
                break;
            }
        }
        look.delivery.done();
        Ok(look.popped)
    }

    /// Claims from one source what the budgets allow.
    async fn pop_from(
        &self,
        source: &Source,
        pinned: Option<Pid>,
        look: &mut Look<'_>,
        hold: &mut Hold,
    ) -> Result<(), PopError> {
        let pop = look.pop;
        let most = usize::try_from(look.partitions).unwrap_or(1) + 3;
        // Candidates that turn out empty cost a round trip each time: look at a few rounds.
        for _ in 0..16 {
            if look.messages <= 0 || look.partitions <= 0 {
                break;
            }
            let pids = match pinned {
                Some(pid) => vec![pid],
                None => self.take_lanes(&source.lanes, most).await?,
            };
            if pids.is_empty() {
                break;
            }
            let claim = Claim {
                group: source.group.no,
                pids: pids.iter().map(|pid| pid.0).collect(),
                batch: look.messages,
                lanes: look.partitions,
                bytes: i64::MAX,
                lease: look.lease,
                lease_ms: pop.lease_s.map(|s| s * 1000),
                auto_ack: pop.auto_ack,
                conflate: source.group.conflation,
            };
            self.fill_wait(pop, source, &claim, hold).await?;
            for lane in self.claim_lanes(&source.lanes, claim).await? {
                let LaneOutcome::Claimed(batch) = &lane.outcome else { continue };
                if !pop.auto_ack {
                    look.delivery.add(source.queue.no, &pop.group, lane.pid);
                }
                let batch = ClaimedBatch::unpack(
                    &self.inner.seal,
                    lane.pid,
                    batch,
                    source.group.conflation,
                )?;
                let named = self.partition_of(&source.queue, lane.pid).await?;
                look.take(batch, &named.ok_or(PopError::Gone)?);
            }
            if pinned.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Holds an under-full waiting pop once, so that it fills (option `minPopWaitTime`).
    ///
    /// What it would get is known by a claim that is given back: only a claim sees what is
    /// visible. Nothing to get is no reason to hold: such a pop waits anyway.
    async fn fill_wait(
        &self,
        pop: &Pop,
        source: &Source,
        claim: &Claim,
        hold: &mut Hold,
    ) -> Result<(), PopError> {
        let ms = u64::try_from(source.queue.options.min_pop_wait_ms).unwrap_or(0);
        let wildcard = matches!(pop.scope, PopScope::Queue(_));
        let Some(deadline) = hold.deadline else { return Ok(()) };
        if hold.done || ms == 0 || pop.batch <= 1 || !wildcard {
            return Ok(());
        }
        let until = deadline.min(Instant::now() + Duration::from_millis(ms));
        let probe = Claim { auto_ack: false, lease: Uuid::now_v7(), ..claim.clone() };
        let (lease, wanted, conflate) = (probe.lease, i64::from(probe.batch), probe.conflate);
        let mut delivery = Delivery::new(&self.inner, lease);
        let mut found = 0;
        for lane in self.claim_lanes(&source.lanes, probe).await? {
            let LaneOutcome::Claimed(batch) = lane.outcome else { continue };
            delivery.add(source.queue.no, &pop.group, lane.pid);
            found += if conflate { 1 } else { batch.batch_end - batch.from_offset + 1 };
        }
        delivery.undo().await;
        hold.done = found > 0;
        if found > 0 && found < wanted {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.inner.stop.cancelled() => {}
            }
        }
        Ok(())
    }
}

/// Whether and until when a pop may be held to fill.
struct Hold {
    /// End of the long poll; `None` for a pop that does not wait.
    deadline: Option<Instant>,
    /// A pop is held once.
    done: bool,
}

/// One look under way: what it has, and what its budgets still allow.
struct Look<'a> {
    pop: &'a Pop,
    lease: Uuid,
    delivery: Delivery,
    popped: Popped,
    messages: i32,
    partitions: i32,
}

impl Look<'_> {
    fn take(&mut self, batch: ClaimedBatch, partition: &Arc<Partition>) {
        self.partitions -= 1;
        self.messages -= i32::try_from(batch.messages.len()).unwrap_or(i32::MAX);
        self.popped.partitions += 1;
        let attempt = batch.attempt;
        self.popped.messages.extend(batch.messages.into_iter().map(|message| PoppedMessage {
            message,
            partition: Arc::clone(partition),
            attempt,
        }));
    }
}

/// Pends for ever without a future, so that a branch of a select can be absent.
async fn optional<F: Future<Output = ()>>(future: std::pin::Pin<&mut Option<F>>) -> Option<()> {
    match future.as_pin_mut() {
        Some(future) => {
            future.await;
            Some(())
        }
        None => std::future::pending().await,
    }
}

/// Counts a parked pop until it is answered or dropped.
#[derive(Default)]
struct Parked(Option<prometheus::IntGauge>);

impl Parked {
    fn enter(&mut self, metrics: &crate::telemetry::Metrics, scope: &PopScope) {
        if self.0.is_some() {
            return;
        }
        let queue = match scope {
            PopScope::Queue(name) | PopScope::Partition(name, _) => name.as_str(),
            PopScope::Discovery { .. } => "",
        };
        let gauge = metrics.parked.with_label_values(&[queue]);
        gauge.inc();
        self.0 = Some(gauge);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some(gauge) = &self.0 {
            gauge.dec();
        }
    }
}

/// Reads a subscription as the wire gives it: mode, and an instant that wins over it.
///
/// An unparsable instant counts as `now` (data-plane section 3).
#[must_use]
pub fn start_of(mode: Option<&str>, from: Option<&str>, default_new: bool) -> Start {
    if let Some(from) = from.filter(|from| !from.is_empty()) {
        return match from.parse::<Timestamp>() {
            Ok(at) => Start::From(at),
            Err(_instant) => Start::New,
        };
    }
    match mode.map(str::to_ascii_lowercase).as_deref() {
        Some("new" | "new-only" | "new_only" | "newonly") => Start::New,
        None | Some("") if default_new => Start::New,
        _ => Start::All,
    }
}
