//! Runs a fold natively, by the rules of a broker: `cargo test` and no WebAssembly.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::fold::{Build, Fold};
use crate::model::{
    Ack, Clock, Context, Emit, Failure, Level, Manifest, Message, Outcome, Reads, Step, Timers,
    Upsert,
};

mod shard;

use shard::{Shard, acked, check};

/// The broker's bound on the rounds of reads in a call.
const ROUNDS_MAX: usize = 4;

/// One partition of a queue, one fold over it, and everything that comes out.
///
/// As in the broker, every batch and every flush gets a fresh fold, rows are given only if asked
/// for, outcomes are checked before any of them is applied, the watermark is kept as the row
/// `__wm__`, and due rows are flushed after each batch.
///
/// ```
/// use foldmq_guest::{prelude::*, testing::TestHost};
/// let mut host = TestHost::new(|| stream::<i64>().filter(|v| *v > 1).sink("big"));
/// host.push("1", 1_000);
/// host.push("2", 2_000);
/// let cycle = host.run_batch(100).unwrap();
/// assert_eq!(cycle.emits[0].payload, r#"{"value":2}"#);
/// ```
pub struct TestHost {
    build: Box<dyn Fn() -> Result<Box<dyn Fold>, Failure>>,
    manifest: Manifest,
    ctx: Context,
    clock: i64,
    last_batch: i64,
    next_offset: u64,
    backlog: VecDeque<Message>,
    shard: Shard,
    emits: Vec<Emit>,
    dead_letters: Vec<DeadLetter>,
    tallies: BTreeMap<String, u64>,
}

/// A message that can never be folded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message.
    pub message: Message,
    /// What the fold said.
    pub reason: String,
}

/// Why nothing was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestError {
    /// The fold said so.
    Fold(Failure),
    /// A broker would refuse what the fold returned.
    Refused(String),
}

impl fmt::Display for TestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fold(failure) => write!(f, "the fold failed: {failure}"),
            Self::Refused(why) => write!(f, "the outcome was refused: {why}"),
        }
    }
}

impl std::error::Error for TestError {}

impl TestHost {
    /// A host for a fold without params. Source partition `lane` with id `p1`, no state.
    ///
    /// # Panics
    /// If the fold refuses to describe itself; [`TestHost::with_params`] returns that.
    pub fn new<A>(build: impl Build<A> + 'static) -> Self {
        match Self::with_params(build, "") {
            Ok(host) => host,
            Err(text) => panic!("describe: {text}"),
        }
    }

    /// A host for a fold with a params document.
    ///
    /// # Errors
    /// What the fold's describe says against the params, or against itself.
    pub fn with_params<A>(build: impl Build<A> + 'static, params: &str) -> Result<Self, String> {
        let manifest = build.describe(params)?;
        let ctx = Context {
            query: "test".into(),
            partition: "lane".into(),
            partition_id: "p1".into(),
            params: params.into(),
            ..Context::default()
        };
        let params = params.to_owned();
        Ok(Self {
            build: Box::new(move || build.build(&params)),
            manifest,
            ctx,
            clock: 0,
            last_batch: 0,
            next_offset: 0,
            backlog: VecDeque::new(),
            shard: Shard::default(),
            emits: Vec::new(),
            dead_letters: Vec::new(),
            tallies: BTreeMap::new(),
        })
    }

    /// Names the source partition and its id.
    pub fn partition(&mut self, name: &str, id: &str) {
        (self.ctx.partition, self.ctx.partition_id) = (name.into(), id.into());
    }

    /// Appends a message: its payload as JSON text, and the broker's stamp, which moves the host's
    /// clock forward.
    pub fn push(&mut self, payload: impl Into<String>, created_at: i64) {
        let offset = self.next_offset;
        self.next_offset += 1;
        self.clock = self.clock.max(created_at);
        self.backlog.push_back(Message {
            offset,
            transaction_id: format!("m{offset}"),
            created_at,
            payload: payload.into(),
        });
    }

    /// Sets the host's clock: what a gate sees, and what timers of processing time follow.
    pub fn set_clock(&mut self, now: i64) {
        self.clock = now;
    }

    /// Stores a row as an outside worker would.
    pub fn store(&mut self, key: &str, value: &str) {
        self.shard.put(Upsert { key: key.into(), value: value.into(), due_at: None });
    }

    /// Folds the next messages of the backlog, at most `max`, then whatever is due.
    ///
    /// # Errors
    /// Nothing is committed; the batch stays in the backlog.
    pub fn run_batch(&mut self, max: usize) -> Result<Outcome, TestError> {
        let batch: Vec<Message> = self.backlog.iter().take(max).cloned().collect();
        let newest = batch.iter().map(|message| message.created_at).max();
        let now = match self.manifest.clock {
            Clock::Messages => newest.unwrap_or(self.clock),
            Clock::Host => self.clock,
        };
        let ctx = Context { now, ..self.ctx.clone() };
        let mut fold = (self.build)().map_err(TestError::Fold)?;
        let step = fold.start(ctx, batch.clone()).map_err(TestError::Fold)?;
        let outcome = self.finish(&mut *fold, step)?;
        let outcome = self.commit(outcome, &batch)?;
        self.last_batch = self.clock;
        self.tick(self.clock)?;
        Ok(outcome)
    }

    /// Folds the backlog in batches of at most `max`, until it is empty or a gate holds it.
    ///
    /// # Errors
    /// The first batch that fails.
    pub fn run_all(&mut self, max: usize) -> Result<(), TestError> {
        let mut left = self.backlog.len();
        while left > 0 {
            self.run_batch(max)?;
            if self.backlog.len() == left {
                return Ok(());
            }
            left = self.backlog.len();
        }
        Ok(())
    }

    /// What the broker does now and then: flushes rows that are due. Timers of event time follow
    /// the watermark, or `now` once the partition was silent for the manifest's idle time.
    ///
    /// # Errors
    /// Nothing is committed.
    pub fn tick(&mut self, now: i64) -> Result<Outcome, TestError> {
        self.clock = self.clock.max(now);
        let idle = i64::from(self.manifest.idle_ms);
        let silent = idle > 0 && now.saturating_sub(self.last_batch) >= idle;
        match (self.manifest.timers, self.ctx.watermark) {
            (Timers::Clock, _) => self.flush(now),
            (Timers::Watermark, Some(watermark)) if silent => self.flush(watermark.max(now)),
            (Timers::Watermark, Some(watermark)) => self.flush(watermark),
            (Timers::Watermark, None) => Ok(Outcome::default()),
        }
    }

    /// What an operator's flush does: says that time has passed up to `clock`.
    ///
    /// # Errors
    /// Nothing is committed.
    pub fn flush_at(&mut self, clock: i64) -> Result<Outcome, TestError> {
        match self.manifest.timers {
            Timers::Clock => self.flush(clock),
            Timers::Watermark => self.flush(self.ctx.watermark.map_or(clock, |w| w.max(clock))),
        }
    }

    fn flush(&mut self, now: i64) -> Result<Outcome, TestError> {
        let rows = self.shard.read(&Reads { due: Some(now), ..Reads::default() })?;
        if rows.is_empty() {
            return Ok(Outcome::default());
        }
        let mut fold = (self.build)().map_err(TestError::Fold)?;
        let ctx = Context { now, ..self.ctx.clone() };
        let step = fold.flush(ctx, rows).map_err(TestError::Fold)?;
        let outcome = self.finish(&mut *fold, step)?;
        self.commit(Outcome { ack: Ack::All, ..outcome }, &[])
    }

    fn finish(&self, fold: &mut dyn Fold, mut step: Step) -> Result<Outcome, TestError> {
        for _ in 0..=ROUNDS_MAX {
            match step {
                Step::Done(outcome) => return Ok(outcome),
                Step::Need(reads) => {
                    step = fold.resume(self.shard.read(&reads)?).map_err(TestError::Fold)?;
                }
            }
        }
        Err(TestError::Refused(format!("more than {ROUNDS_MAX} rounds of reads")))
    }

    fn commit(&mut self, outcome: Outcome, batch: &[Message]) -> Result<Outcome, TestError> {
        let old = self.ctx.watermark;
        check(&self.manifest, old, &outcome, batch.len()).map_err(TestError::Refused)?;
        let outcome = self.shard.apply(outcome);
        self.ctx.watermark = outcome.watermark.or(old);
        self.emits.extend(outcome.emits.iter().cloned());
        for reject in &outcome.rejects {
            let message = usize::try_from(reject.index).ok().and_then(|at| batch.get(at));
            let letter = |message: &Message| DeadLetter {
                message: message.clone(),
                reason: reject.reason.clone(),
            };
            self.dead_letters.extend(message.map(letter));
        }
        for tally in &outcome.tallies {
            *self.tallies.entry(tally.cause.clone()).or_default() += tally.count;
        }
        self.backlog.drain(..acked(&outcome, batch.len()));
        Ok(outcome)
    }

    /// What the fold says about itself.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Every message emitted so far.
    #[must_use]
    pub fn emits(&self) -> &[Emit] {
        &self.emits
    }

    /// Every message that could not be folded.
    #[must_use]
    pub fn dead_letters(&self) -> &[DeadLetter] {
        &self.dead_letters
    }

    /// How many records were left out for a cause.
    #[must_use]
    pub fn tally(&self, cause: &str) -> u64 {
        self.tallies.get(cause).copied().unwrap_or(0)
    }

    /// The state rows, by key; `__wm__` among them.
    #[must_use]
    pub fn rows(&self) -> &BTreeMap<String, Upsert> {
        &self.shard.rows
    }

    /// The partition's watermark.
    #[must_use]
    pub fn watermark(&self) -> Option<i64> {
        self.ctx.watermark
    }

    /// How many messages wait.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// Takes the log lines written so far.
    #[must_use]
    pub fn logs(&self) -> Vec<(Level, String)> {
        crate::log::take()
    }
}
