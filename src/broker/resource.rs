//! Counts that operators look at. Everything is live, but for stored sizes: those cost a look at
//! every segment, so they are remembered for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::Broker;
use crate::db::Error;
use crate::db::message::Scope;
use crate::db::queue::Queue;
use crate::db::resource::{DepthRow, PartitionFigures, QueueFigures, QueueSize, TenantFigures};
use crate::types::id::{QueueNo, TenantId};

/// Sizes are remembered this many times longer than it took to read them: a hundredth of the time.
const SIZE_SHARE: u32 = 100;
/// Bounds of that time.
const SIZE_AGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// What rates are taken over.
const RATE_WINDOW: Duration = Duration::from_secs(300);
/// Time between two samples of a rate.
const RATE_STEP: Duration = Duration::from_secs(1);

/// What is remembered between requests.
#[derive(Default)]
pub(super) struct Figures {
    sizes: Mutex<HashMap<QueueNo, (QueueSize, Instant)>>,
    consumed: Mutex<HashMap<TenantId, VecDeque<(Instant, i64)>>>,
}

impl Figures {
    fn sizes<T>(&self, f: impl FnOnce(&mut HashMap<QueueNo, (QueueSize, Instant)>) -> T) -> T {
        f(&mut self.sizes.lock().expect("no holder panics"))
    }

    /// Settled messages a second, between the first look of the last minutes and this one.
    fn rate(&self, tenant: TenantId, total: i64, now: Instant) -> f64 {
        let mut table = self.consumed.lock().expect("no holder panics");
        let samples = table.entry(tenant).or_default();
        while samples.len() > 1 && samples.front().is_some_and(|s| now - s.0 > RATE_WINDOW) {
            samples.pop_front();
        }
        if samples.back().is_none_or(|last| now - last.0 >= RATE_STEP) {
            samples.push_back((now, total));
        }
        let Some((at, before)) = samples.front() else { return 0.0 };
        let seconds = (now - *at).as_secs_f64();
        // Deleted groups take what they settled with them.
        let settled = (total - before).max(0);
        if seconds > 0.0 { per_second(settled, seconds) } else { 0.0 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(n: i64, seconds: f64) -> f64 {
    n as f64 / seconds
}

/// A queue with everything under it.
#[derive(Clone, Debug)]
pub struct QueueDetail {
    /// The queue.
    pub queue: Queue,
    /// Its partitions, by name.
    pub partitions: Vec<PartitionFigures>,
    /// Stored size.
    pub size: QueueSize,
}

/// What a group has left on a queue.
#[derive(Clone, Debug)]
pub struct Depth {
    /// By partition, by name.
    pub rows: Vec<DepthRow>,
    /// Whether the group takes only the newest message of a partition.
    pub conflation: bool,
}

/// Counts of a tenant, and how fast they move.
#[derive(Clone, Copy, Debug)]
pub struct Overview {
    /// Counts.
    pub figures: TenantFigures,
    /// Messages committed a second, over five minutes.
    pub ingested_per_s: f64,
    /// Messages settled a second, as far as this broker has looked.
    pub processed_per_s: f64,
    /// The database's clock.
    pub at: Timestamp,
}

impl Broker {
    /// Queues with counts and sizes, newest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queues(&self, tenant: TenantId) -> Result<Vec<(QueueFigures, QueueSize)>, Error> {
        let rows = self.inner.db.queue_figures(tenant, &Scope::default(), None, 0).await?;
        let numbers: Vec<QueueNo> = rows.iter().map(|row| row.no).collect();
        let sizes = self.sizes(&numbers).await?;
        let size = |no: QueueNo| sizes.get(&no).copied().unwrap_or_default();
        Ok(rows.into_iter().map(|row| (size(row.no), row)).map(|(size, row)| (row, size)).collect())
    }

    /// A queue with its partitions; `None` where it does not exist.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn queue_detail(
        &self,
        tenant: TenantId,
        name: &str,
    ) -> Result<Option<QueueDetail>, Error> {
        let Some(queue) = self.inner.db.queue_find(tenant, name).await? else { return Ok(None) };
        let partitions = self.inner.db.partition_figures(queue.no).await?;
        let size = self.sizes(&[queue.no]).await?.remove(&queue.no).unwrap_or_default();
        Ok(Some(QueueDetail { queue, partitions, size }))
    }

    /// What a group has left on a queue; without a group, what the slowest one has left. `None`
    /// where the queue does not exist.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn depth(
        &self,
        tenant: TenantId,
        name: &str,
        group: Option<&str>,
    ) -> Result<Option<Depth>, Error> {
        let db = &self.inner.db;
        let Some(queue) = db.queue_find(tenant, name).await? else { return Ok(None) };
        let Some(group) = group else {
            let rows = db.partition_figures(queue.no).await?.into_iter().map(|p| DepthRow {
                partition: p.name,
                pending: p.counts.pending,
                processing: p.counts.processing,
            });
            return Ok(Some(Depth { rows: rows.collect(), conflation: false }));
        };
        let conflation = db.group_find(queue.no, group).await?.is_some_and(|g| g.conflation);
        Ok(Some(Depth { rows: db.depth(queue.no, group).await?, conflation }))
    }

    /// Counts of a tenant, and how fast they move.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn overview(&self, tenant: TenantId) -> Result<Overview, Error> {
        let db = &self.inner.db;
        let figures = db.tenant_figures(tenant).await?;
        let at = Timestamp::from_millisecond(db.clock_ms().await?).unwrap_or(Timestamp::MAX);
        let from = at - SignedDuration::try_from(RATE_WINDOW).expect("some minutes");
        let ingested = self.ingested(tenant, &Scope::default(), &[from]).await?;
        Ok(Overview {
            figures,
            ingested_per_s: per_second(ingested.iter().sum(), RATE_WINDOW.as_secs_f64()),
            processed_per_s: self.inner.figures.rate(
                tenant,
                figures.total_consumed,
                Instant::now(),
            ),
            at,
        })
    }

    /// Messages committed from each instant to the next one, and from the last one on.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn ingested(
        &self,
        tenant: TenantId,
        scope: &Scope,
        instants: &[Timestamp],
    ) -> Result<Vec<i64>, Error> {
        let Some(first) = instants.first() else { return Ok(Vec::new()) };
        let db = &self.inner.db;
        let partitions = db.partitions_written(tenant, scope, *first).await?;
        let mut next: i64 = partitions.iter().map(|(_, next)| next).sum();
        let pairs: Vec<_> = instants
            .iter()
            .flat_map(|at| partitions.iter().map(move |(pid, _)| (*pid, *at)))
            .collect();
        let offsets = db.offsets_at(&pairs).await?;
        let mut out: Vec<i64> = if partitions.is_empty() {
            vec![0; instants.len()]
        } else {
            offsets.chunks(partitions.len()).map(|at| at.iter().sum()).collect()
        };
        for sum in out.iter_mut().rev() {
            // An append between the two reads is not counted.
            let n = (next - *sum).max(0);
            next = *sum;
            *sum = n;
        }
        Ok(out)
    }

    /// Reads stored sizes anew, and gives the counts that are live anyway.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn stats_refresh(&self, tenant: TenantId) -> Result<Overview, Error> {
        self.inner.figures.sizes(HashMap::clear);
        self.queues(tenant).await?;
        self.overview(tenant).await
    }

    /// Stored sizes, read where they are not remembered.
    async fn sizes(&self, queues: &[QueueNo]) -> Result<HashMap<QueueNo, QueueSize>, Error> {
        let figures = &self.inner.figures;
        let begun = Instant::now();
        let missing: Vec<QueueNo> = figures.sizes(|known| {
            known.retain(|_, (_, until)| *until > begun);
            queues.iter().filter(|queue| !known.contains_key(queue)).copied().collect()
        });
        if !missing.is_empty() {
            let read: HashMap<QueueNo, QueueSize> =
                self.inner.db.queue_sizes(&missing).await?.into_iter().collect();
            let now = Instant::now();
            let keep = ((now - begun) * SIZE_SHARE).clamp(SIZE_AGE.0, SIZE_AGE.1);
            figures.sizes(|known| {
                for queue in missing {
                    let size = read.get(&queue).copied().unwrap_or_default();
                    known.insert(queue, (size, now + keep));
                }
            });
        }
        Ok(figures.sizes(|known| {
            queues.iter().filter_map(|no| known.get(no).map(|(size, _)| (*no, *size))).collect()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_taken_between_looks_and_never_negative() {
        let figures = Figures::default();
        let (tenant, start) = (TenantId::DEFAULT, Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let rates = [(0, 100), (10, 200), (20, 100), (300, 700), (400, 1_000)]
            .map(|(at, total)| figures.rate(tenant, total, after(at)));
        // At 400 s the first three looks are too old, so the fourth is the base.
        assert_eq!(rates, [0.0, 10.0, 0.0, 2.0, 3.0]);
    }
}
