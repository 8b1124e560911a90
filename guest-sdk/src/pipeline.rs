//! A finished chain as a fold.

use std::fmt;

use crate::engine::{Engine, Folded, Next};
use crate::fold::Fold;
use crate::model::{Context, Emit, Entry, Failure, Manifest, Message, Outcome, Step};
use crate::settings::Settings;

/// A finished chain of operators. It is a [`Fold`]; give it to [`crate::export_fold!`] or to
/// [`crate::testing::TestHost`].
pub struct Pipeline(Box<dyn Fold>);

impl Pipeline {
    pub(crate) fn new<O: 'static>(
        engine: Box<dyn Engine<Emit, O>>,
        settings: Settings,
        sink: Option<String>,
    ) -> Self {
        Self(Box::new(Chain { engine, settings, sink }))
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pipeline").finish_non_exhaustive()
    }
}

impl Fold for Pipeline {
    fn describe(&self, params: &str) -> Result<Manifest, String> {
        self.0.describe(params)
    }

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Step, Failure> {
        self.0.start(ctx, batch)
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.0.resume(rows)
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.0.flush(ctx, rows)
    }
}

struct Chain<O> {
    engine: Box<dyn Engine<Emit, O>>,
    settings: Settings,
    sink: Option<String>,
}

impl<O> Chain<O> {
    fn finish(folded: Folded<Emit, O>) -> Step {
        let Folded { values, outcome } = folded;
        let mut emits = outcome.emits;
        emits.extend(values.into_iter().map(|(emit, _)| emit));
        Step::Done(Outcome { emits, ..outcome })
    }

    fn step(next: Next<Emit, O>) -> Step {
        match next {
            Next::Need(reads) => Step::Need(reads),
            Next::Done(folded) => Self::finish(folded),
        }
    }
}

impl<O> Fold for Chain<O> {
    fn describe(&self, params: &str) -> Result<Manifest, String> {
        // A misspelt or misplaced parameter must not pass in silence.
        if !matches!(params.trim(), "" | "{}" | "null") {
            return Err("this fold takes no params".into());
        }
        let mut manifest = Manifest {
            name: self.settings.name.clone(),
            version: self.settings.version.clone(),
            max_batch: self.settings.max_batch,
            sinks: self.sink.iter().cloned().collect(),
            ..Manifest::default()
        };
        self.engine.describe(&mut manifest);
        manifest.sinks.sort_unstable();
        manifest.sinks.dedup();
        let mut problems = self.settings.problems.clone();
        if manifest.sinks.iter().any(String::is_empty) {
            problems.push("a sink needs the name of a queue".into());
        }
        if problems.is_empty() { Ok(manifest) } else { Err(problems.join("; ")) }
    }

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Step, Failure> {
        self.settings.check()?;
        self.engine.start(ctx, batch).map(Self::step)
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.engine.resume(rows).map(Self::step)
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.settings.check()?;
        self.engine.flush(ctx, rows).map(Self::finish)
    }
}
