//! Folds inside the broker: their cycles, their rate against workers outside, their guest's share.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::many::{self, Plan};
use super::measure::{Pace, Pair, float, window};
use super::stage::{Stage, Target};
use super::worker;

/// Time between looks at counters.
const LOOK: Duration = Duration::from_millis(1);
/// Longest wait for a hosted query to begin or to finish.
const PATIENCE: Duration = Duration::from_secs(60);
/// Batch of a hosted query that names none.
pub(super) const DEFAULT_BATCH: usize = 1_000;

/// Counters of one hosted query, or their growth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) cycles: u64,
    pub(super) messages: u64,
    pub(super) emits: u64,
    pub(super) guest_us: u64,
    pub(super) cycle_us: u64,
    /// Commits of the broker, of this query and of all others, and cycles in them.
    pub(super) commits: u64,
    pub(super) committed: u64,
}

impl Counted {
    fn read(stage: &Stage, query: &str) -> Self {
        let metrics = stage.server().broker().metrics();
        Self {
            cycles: metrics.hosted_cycles.with_label_values(&[query, "committed"]).get(),
            messages: metrics.hosted_messages.with_label_values(&[query]).get(),
            emits: metrics.hosted_emits.with_label_values(&[query]).get(),
            guest_us: metrics.hosted_guest_us.with_label_values(&[query]).get(),
            cycle_us: metrics.hosted_cycle_us.with_label_values(&[query]).get(),
            commits: metrics.batches.with_label_values(&["cycle"]).get(),
            committed: metrics.batch_items.with_label_values(&["cycle"]).get(),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            cycles: self.cycles - before.cycles,
            messages: self.messages - before.messages,
            emits: self.emits - before.emits,
            guest_us: self.guest_us - before.guest_us,
            cycle_us: self.cycle_us - before.cycle_us,
            commits: self.commits - before.commits,
            committed: self.committed - before.committed,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cycles: self.cycles + other.cycles,
            messages: self.messages + other.messages,
            emits: self.emits + other.emits,
            guest_us: self.guest_us + other.guest_us,
            cycle_us: self.cycle_us + other.cycle_us,
            commits: self.commits + other.commits,
            committed: self.committed + other.committed,
        }
    }

    /// Part of the time from claim to commit that passed in the guest call.
    pub(super) fn guest_share(&self) -> f64 {
        float(self.guest_us) / float(self.cycle_us)
    }

    /// Microseconds of the guest call a message.
    pub(super) fn guest_us_per_message(&self) -> f64 {
        float(self.guest_us) / float(self.messages)
    }

    /// Cycles that shared a commit, on average.
    pub(super) fn together(&self) -> f64 {
        float(self.committed) / float(self.commits)
    }
}

/// A hosted query while it runs.
struct Run<'s> {
    stage: &'s Stage,
    query: String,
    begun: Instant,
}

impl<'s> Run<'s> {
    /// Registers a query, paused, and lets it go.
    async fn start(
        stage: &'s Stage,
        name: &str,
        source: &Target,
        batch: usize,
    ) -> anyhow::Result<Self> {
        let batch = i64::try_from(batch)?;
        let query = stage.hosted_query(name, &source.queue.name, batch).await?;
        let begun = Instant::now();
        stage.steer(&query, "resume").await?;
        Ok(Self { stage, query, begun })
    }

    fn counted(&self) -> Counted {
        Counted::read(self.stage, &self.query)
    }

    /// Waits until the counters say so.
    async fn until(&self, done: impl Fn(&Counted) -> bool) -> anyhow::Result<Counted> {
        loop {
            let counted = self.counted();
            if done(&counted) {
                return Ok(counted);
            }
            ensure!(self.begun.elapsed() < PATIENCE, "{} makes no progress", self.query);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Pauses it, and waits until its last cycles are through.
    async fn stop(self) -> anyhow::Result<()> {
        self.stage.steer(&self.query, "pause").await?;
        let mut before = self.counted().cycles;
        loop {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let now = self.counted().cycles;
            if now == before {
                return Ok(());
            }
            before = now;
        }
    }
}

/// Where the feed stands and where results go.
pub(super) struct Scene<'s> {
    pub(super) stage: &'s Stage,
    pub(super) source: &'s Target,
    /// Queue for what does not go through the module.
    pub(super) sink: &'s Target,
    pub(super) plan: &'s Plan,
    /// Messages on each lane.
    pub(super) lane_messages: usize,
}

impl Scene<'_> {
    fn messages(&self) -> u64 {
        (self.source.lanes.len() * self.lane_messages) as u64
    }

    /// Committed cycles of 100 messages a second, hosted against many-cycle calls.
    pub(super) async fn cycles(&self, pace: Pace) -> anyhow::Result<(Pair, Counted)> {
        let (mut pair, mut total) = (Pair::default(), Counted::default());
        for round in 0..pace.rounds {
            for turn in [round % 2, (round + 1) % 2] {
                if turn == 0 {
                    let name = format!("many-{round}");
                    let callers =
                        many::callers(self.stage, &name, self.source, self.sink, self.plan).await?;
                    pair.base.push(window(callers, pace.window).await?.1);
                } else {
                    let (rate, counted) = self.cycle_window(round, pace.window).await?;
                    pair.mine.push(rate);
                    total = total.plus(counted);
                }
            }
        }
        Ok((pair, total))
    }

    async fn cycle_window(&self, round: u32, time: Duration) -> anyhow::Result<(f64, Counted)> {
        let name = format!("cycles-{round}");
        let run = Run::start(self.stage, &name, self.source, many::BATCH).await?;
        // Every lane is under way, and the module is loaded.
        let first = run.until(|c| c.cycles >= 2 * self.source.lanes.len() as u64).await?;
        let begun = Instant::now();
        let last = run.until(|c| begun.elapsed() >= time || c.cycles >= self.plan.cycles).await?;
        let counted = last.since(first);
        let rate = float(counted.cycles) / begun.elapsed().as_secs_f64();
        run.stop().await?;
        Ok((rate, counted))
    }

    /// Messages a second from resume to lag 0, against one and eight workers outside.
    pub(super) async fn folds(&self, pace: Pace) -> anyhow::Result<(Pair, Pair, Counted)> {
        let (mut one, mut eight) = (Pair::default(), Pair::default());
        let mut total = Counted::default();
        for round in 0..pace.rounds {
            let (rate, counted) = self.fold(&format!("fold-{round}"), DEFAULT_BATCH).await?;
            total = total.plus(counted);
            for (pair, n) in [(&mut one, 1), (&mut eight, 8)] {
                pair.mine.push(rate);
                pair.base.push(self.workers(round, n, pace.window).await?);
            }
        }
        Ok((one, eight, total))
    }

    /// Folds the whole backlog once; messages a second, and what was counted.
    pub(super) async fn fold(&self, name: &str, batch: usize) -> anyhow::Result<(f64, Counted)> {
        let run = Run::start(self.stage, name, self.source, batch).await?;
        let messages = self.messages();
        let counted = run.until(|c| c.messages >= messages).await?;
        let rate = float(counted.messages) / run.begun.elapsed().as_secs_f64();
        run.stop().await?;
        ensure!(counted.messages == messages, "{} of {messages} folded", counted.messages);
        Ok((rate, counted))
    }

    async fn workers(&self, round: u32, n: usize, time: Duration) -> anyhow::Result<f64> {
        let name = format!("workers-{n}-{round}");
        let sink = &self.sink.queue.name;
        let team = worker::team(self.stage, &name, &self.source.queue.name, sink, n).await?;
        // The first pop registers the group; the first cycles fill caches.
        let (team, _) = window(team, Duration::from_millis(300)).await?;
        Ok(window(team, time).await?.1)
    }
}
