//! `foldmq bench`: how fast this machine is with FoldMQ, against PostgreSQL driven directly.
//!
//! Starts a broker of its own. Compared variants take turns in short rounds; the results are
//! ratios, because absolute rates of a shared machine say little. Everything that is made, in a
//! given database too, carries the name of the run and is deleted at the end.

mod cycle;
mod fold;
mod hosted;
mod load;
mod many;
mod measure;
mod pop;
mod push;
mod report;
mod stage;
mod wire;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::ProgressBar;

use super::demo::build_module;
use super::serve::quit_signal;
use super::{StoreArgs, say};
use crate::postgres::default_data_dir;
use crate::server::{Config, Store};
use hosted::Scene;
use load::Feed;
use many::Plan;
use measure::Pace;
use report::Report;
use stage::{CONNECTIONS, LANES, Stage};

/// Messages on each lane for each second of a variant: the hosted fold must not run dry.
const LANE_MESSAGES: usize = 8_000;

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Pushes of 1, 10 and 100 messages.
    Push,
    /// Pops and acks.
    Pop,
    /// Single cycles.
    Cycle,
    /// Hosted cycles of 100 messages.
    Hosted,
    /// Hosted folds and workers outside.
    Fold,
    /// The guest's share of a hosted cycle.
    Guest,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  foldmq bench
  foldmq bench --seconds 10 --json
  foldmq bench --database-url postgres://me@db.example/queue")]
pub(super) struct BenchArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The compiled example fold. [default: built from the checkout with cargo]
    #[arg(long)]
    module: Option<PathBuf>,
    /// Seconds for each variant of a comparison, spread over rounds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Only these parts, and what they need. [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

impl BenchArgs {
    /// Whether one of these parts was asked for.
    fn wants(&self, parts: &[Part]) -> bool {
        self.only.is_empty() || parts.iter().any(|part| self.only.contains(part))
    }
}

/// Runs the bench.
pub(super) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let mut quit = quit_signal()?;
    let module = match &args.module {
        Some(path) => {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => build_module().await?,
    };
    let id = format!("{:06x}", rand::random::<u32>() >> 8);
    let given = args.store.database_url.is_some() || args.store.data_dir.is_some();
    let scratch = (!given).then(|| default_data_dir().join("bench").join(&id));
    let mut config = Config::new(([127, 0, 0, 1], 0).into(), args.store.store(scratch.clone()))?;
    // The module is changed for this run: its compiled code is of no use to another.
    let compiled = tempfile::tempdir().context("a folder for compiled code")?;
    if matches!(config.store, Store::Url(_)) {
        config.compiled_dir = compiled.path().to_owned();
    }
    let started = tokio::select! {
        started = Stage::start(id, config, scratch.clone()) => started,
        () = quit.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    let stage = match (started, &scratch) {
        (Ok(stage), _) => stage,
        (Err(cause), Some(folder)) => {
            stage::remove(folder)?;
            return Err(cause);
        }
        (Err(cause), None) => return Err(cause),
    };
    let measured = tokio::select! {
        measured = measure(&stage, &args, &module) => measured,
        () = quit.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    let ended = tokio::select! {
        ended = stage.end() => ended,
        () = quit.recv() => Err(anyhow::anyhow!("stopped by a second signal before all was deleted")),
    };
    let report = measured?;
    say(&if args.json { report.json().to_string() } else { report.text() });
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// What happens now, on a terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// All measurements, one after another.
async fn measure(stage: &Stage, args: &BenchArgs, module: &[u8]) -> anyhow::Result<Report> {
    let progress = Progress::new();
    let mut report = Report::default();
    report.load("before");
    report.conditions_of(stage).await?;
    let pace = Pace { rounds: args.seconds, window: Duration::from_secs(1) };
    let feed = Feed::open()?;
    let n = (LANE_MESSAGES * usize::try_from(args.seconds)?).min(feed.len() / 1_000 * 1_000);
    report.condition("partitions", LANES);
    report.condition("http_connections", CONNECTIONS);
    report.condition("database_connections", stage.pool_size());
    report.condition("payload_bytes", feed.payload_bytes());
    report.condition("backlog_messages", LANES * n);
    report.condition("seconds_a_variant", args.seconds);
    report.condition("clients", "in the broker's process");
    report.condition(
        "direct",
        "prepared calls: log_push_one_v1 with packed segments; log_claim_v1, log_settle_v1, \
         cycles_v1 through the broker's own db layer on a pool of the same size",
    );
    let bench = Bench { stage, args, feed: &feed, pace, progress: &progress };
    bench.calls(&mut report).await?;
    if args.wants(&[Part::Hosted, Part::Fold, Part::Guest]) {
        bench.hosted(&mut report, n, module).await?;
    }
    report.load("after");
    Ok(report)
}

/// What every part takes.
struct Bench<'b> {
    stage: &'b Stage,
    args: &'b BenchArgs,
    feed: &'b Feed,
    pace: Pace,
    progress: &'b Progress,
}

impl Bench<'_> {
    /// Pushes, pops and single cycles.
    async fn calls(&self, report: &mut Report) -> anyhow::Result<()> {
        let Self { stage, feed, pace, .. } = *self;
        if self.args.wants(&[Part::Push]) {
            self.progress.say("pushes of 1 message");
            let (pair, _) = push::compare(stage, feed, pace, 1).await?;
            let words = ["push, batch 1", "one commit per push", "messages"];
            report.pair("push_batch1_vs_commit_per_push", words, &pair);
        }
        if self.args.wants(&[Part::Push, Part::Cycle]) {
            self.progress.say("pushes of 10 messages");
            let (pair, filled) = push::compare(stage, feed, pace, cycle::BATCH).await?;
            let words = ["push, batch 10", "direct segments of 10", "messages"];
            report.pair("push_batch10_vs_direct", words, &pair);
            if self.args.wants(&[Part::Cycle]) {
                self.progress.say("single cycles");
                let pair = cycle::compare(stage, feed, pace, &filled.target).await?;
                let words = ["pop + cycle over HTTP", "direct claim + cycle, one a call", "cycles"];
                report.pair("http_cycle_vs_direct", words, &pair);
            }
        }
        if self.args.wants(&[Part::Push, Part::Pop]) {
            self.progress.say("pushes of 100 messages");
            let (pair, filled) = push::compare(stage, feed, pace, pop::BATCH).await?;
            let words = ["push, batch 100", "direct segments of 100", "messages"];
            report.pair("push_vs_direct", words, &pair);
            if self.args.wants(&[Part::Pop]) {
                self.progress.say("pops and acks");
                let pair = pop::compare(stage, pace, &filled.target, &filled.segments).await?;
                let words = ["pop + ack, batch 100", "direct claims + settles", "messages"];
                report.pair("pop_ack_vs_direct", words, &pair);
            }
        }
        Ok(())
    }

    /// Hosted cycles, hosted folds and workers outside; `n` messages on each lane.
    async fn hosted(&self, report: &mut Report, n: usize, module: &[u8]) -> anyhow::Result<()> {
        let Self { stage, feed, pace, .. } = *self;
        self.progress.say("filling the backlog");
        stage.upload(module).await?;
        let source = stage.queue("flights", LANES).await?;
        let sink = stage.queue("windows", LANES).await?;
        push::fill(stage, feed, &source, n).await?;
        let plan = Plan::new(feed, &source, n)?;
        let scene = Scene { stage, source: &source, sink: &sink, plan: &plan, lane_messages: n };
        if self.args.wants(&[Part::Hosted]) {
            self.progress.say("hosted cycles");
            let (pair, counted) = scene.cycles(pace).await?;
            let words = ["hosted cycles of 100 messages", "direct cycles, 8 a call", "cycles"];
            report.pair("hosted_cycle_vs_direct", words, &pair);
            report.rate("hosted cycles a commit", counted.together());
            report.guest("batch 100, all lanes", &counted);
        }
        if self.args.wants(&[Part::Fold]) {
            self.progress.say("hosted folds and workers");
            let pace = Pace { rounds: pace.rounds.min(3), window: Duration::from_secs(2) };
            let (one, eight, counted) = scene.folds(pace).await?;
            let words = ["hosted fold", "one worker outside", "messages"];
            report.pair("hosted_fold_vs_one_worker", words, &one);
            let words = ["hosted fold", "eight workers outside", "messages"];
            report.pair("hosted_fold_vs_eight_workers", words, &eight);
            report.guest("batch 1000, all lanes", &counted);
            let (emits, expected) = (counted.emits, u64::from(pace.rounds) * plan.emits);
            ensure!(emits == expected, "hosted folds emitted {emits} windows, not {expected}");
        }
        if self.args.wants(&[Part::Guest]) {
            self.progress.say("the guest's share");
            let source = stage.queue("lane", 1).await?;
            push::fill(stage, feed, &source, n).await?;
            let alone = Scene { source: &source, ..scene };
            for batch in [many::BATCH, hosted::DEFAULT_BATCH] {
                let (_, counted) = alone.fold(&format!("alone-{batch}"), batch).await?;
                report.guest(&format!("batch {batch}, one lane"), &counted);
                if batch == many::BATCH {
                    report.ratio("guest_share_of_cycle", counted.guest_share());
                }
            }
        }
        Ok(())
    }
}
