//! The wasm side of a fold: generated types to plain ones and back, the panic hook, the log.

use std::cell::RefCell;
use std::sync::Once;

use crate::bindings::{self, types as wit};
use crate::fold::{Build, Fold};
use crate::model::{
    Ack, Clock, Context, Emit, Entry, Failure, Level, Manifest, Message, Op, Outcome, Reject, Step,
    Tally, Timers,
};

std::thread_local! {
    /// The fold between start and resume.
    static CURRENT: RefCell<Option<Box<dyn Fold>>> = const { RefCell::new(None) };
}

/// A panic ends the instance; its text would be lost without a line in the log.
fn install_panic_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| log(Level::Error, &info.to_string())));
    });
}

pub(crate) fn log(level: Level, text: &str) {
    let level = match level {
        Level::Debug => wit::Level::Debug,
        Level::Info => wit::Level::Info,
        Level::Warn => wit::Level::Warn,
        Level::Error => wit::Level::Error,
    };
    bindings::log(level, text);
}

/// The export describe.
///
/// # Errors
/// What the fold says against the params.
pub fn describe<A>(
    build: &impl Build<A>,
    params: &str,
    package: (&str, &str),
) -> Result<wit::Manifest, String> {
    install_panic_hook();
    let mut manifest = build.describe(params)?;
    for (field, default) in [(&mut manifest.name, package.0), (&mut manifest.version, package.1)] {
        if field.is_empty() {
            default.clone_into(field);
        }
    }
    Ok(manifest.into())
}

/// The export start.
///
/// # Errors
/// What the fold says.
pub fn start<A>(
    build: &impl Build<A>,
    ctx: wit::Context,
    batch: Vec<wit::Message>,
) -> Result<wit::Step, wit::Failure> {
    install_panic_hook();
    let mut fold = build.build(&ctx.params)?;
    let step = fold.start(ctx.into(), batch.into_iter().map(Into::into).collect())?;
    CURRENT.set(Some(fold));
    Ok(step.into())
}

/// The export resume.
///
/// # Errors
/// What the fold says.
pub fn resume(rows: Vec<wit::Entry>) -> Result<wit::Step, wit::Failure> {
    install_panic_hook();
    let Some(mut fold) = CURRENT.take() else {
        return Err(wit::Failure::Halt("resume came without a start".into()));
    };
    let step = fold.resume(entries(rows))?;
    CURRENT.set(Some(fold));
    Ok(step.into())
}

/// The export flush.
///
/// # Errors
/// What the fold says.
pub fn flush<A>(
    build: &impl Build<A>,
    ctx: wit::Context,
    rows: Vec<wit::Entry>,
) -> Result<wit::Step, wit::Failure> {
    install_panic_hook();
    let mut fold = build.build(&ctx.params)?;
    let step = fold.flush(ctx.into(), entries(rows))?;
    CURRENT.set(Some(fold));
    Ok(step.into())
}

fn entries(rows: Vec<wit::Entry>) -> Vec<Entry> {
    rows.into_iter().map(|row| Entry { key: row.key, value: row.value }).collect()
}

fn list<A, B: From<A>>(items: Vec<A>) -> Vec<B> {
    items.into_iter().map(Into::into).collect()
}

impl From<wit::Message> for Message {
    fn from(m: wit::Message) -> Self {
        let wit::Message { offset, transaction_id, created_at, payload } = m;
        Self { offset, transaction_id, created_at, payload }
    }
}

impl From<wit::Context> for Context {
    fn from(c: wit::Context) -> Self {
        let wit::Context { query, partition, partition_id, params, now, watermark } = c;
        Self { query, partition, partition_id, params, now, watermark }
    }
}

impl From<Manifest> for wit::Manifest {
    fn from(m: Manifest) -> Self {
        let Manifest { name, version, clock, timers, sinks, max_batch, idle_ms } = m;
        let clock = match clock {
            Clock::Messages => wit::Clock::Messages,
            Clock::Host => wit::Clock::Host,
        };
        let timers = match timers {
            Timers::Watermark => wit::Timers::Watermark,
            Timers::Clock => wit::Timers::Clock,
        };
        Self { name, version, clock, timers, sinks, max_batch, idle_ms }
    }
}

impl From<Step> for wit::Step {
    fn from(step: Step) -> Self {
        match step {
            Step::Need(reads) => Self::Need(wit::Reads {
                keys: reads.keys,
                prefixes: reads.prefixes,
                due: reads.due,
            }),
            Step::Done(outcome) => Self::Done(outcome.into()),
        }
    }
}

impl From<Outcome> for wit::Outcome {
    fn from(o: Outcome) -> Self {
        let Outcome { ops, emits, rejects, tallies, ack, watermark } = o;
        let ack = match ack {
            Ack::All => wit::Ack::All,
            Ack::Prefix { count, retry_after_ms } => {
                wit::Ack::Prefix(wit::Prefix { count, retry_after_ms })
            }
        };
        Self {
            ops: list(ops),
            emits: list(emits),
            rejects: list(rejects),
            tallies: list(tallies),
            ack,
            watermark,
        }
    }
}

impl From<Op> for wit::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Upsert(u) => {
                Self::Upsert(wit::Upsert { key: u.key, value: u.value, due_at: u.due_at })
            }
            Op::Delete(key) => Self::Delete(key),
        }
    }
}

impl From<Emit> for wit::Emit {
    fn from(e: Emit) -> Self {
        let Emit { queue, partition, payload, transaction_id } = e;
        Self { queue, partition, payload, transaction_id }
    }
}

impl From<Reject> for wit::Reject {
    fn from(r: Reject) -> Self {
        Self { index: r.index, reason: r.reason }
    }
}

impl From<Tally> for wit::Tally {
    fn from(t: Tally) -> Self {
        Self { cause: t.cause, count: t.count }
    }
}

impl From<Failure> for wit::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry(text) => Self::Retry(text),
            Failure::Halt(text) => Self::Halt(text),
        }
    }
}
