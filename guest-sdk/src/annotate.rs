//! The engine of windows without a reducer: each record goes on with its window beside it.

use crate::engine::{Engine, Folded, Next};
use crate::intake::{self, KeyFn, Source, SourceFn, plain_key};
use crate::model::{Context, Entry, Failure, Manifest, Message, Outcome};
use crate::origin::Closed;
use crate::timing::Timing;
use crate::window::Window;

pub(crate) struct Annotate<T> {
    pub(crate) source: SourceFn<T>,
    pub(crate) key: Option<KeyFn<T>>,
    pub(crate) window: Window,
    pub(crate) timing: Timing<T>,
}

impl<T: Clone> Engine<T, Closed> for Annotate<T> {
    fn describe(&self, _manifest: &mut Manifest) {}

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Next<T, Closed>, Failure> {
        let judge = self.timing.judge(self.window);
        let key = self.key.as_ref();
        let mut intake = intake::read(&self.source, key, &ctx, &batch, &judge, plain_key)?;
        let source = Source::of(&ctx);
        let tallies = intake.tallies(batch.len()).into_list();
        let mut values = Vec::with_capacity(intake.records.len());
        for record in intake.records {
            for start in self.window.starts(record.time) {
                let end = start + self.window.length();
                let window = Closed::new(record.key.clone(), start, end, source.clone());
                values.push((record.data.clone(), window));
            }
        }
        let outcome = Outcome { rejects: intake.rejects, tallies, ..Outcome::default() };
        Ok(Next::Done(Folded { values, outcome }))
    }

    fn resume(&mut self, _rows: Vec<Entry>) -> Result<Next<T, Closed>, Failure> {
        Err(Failure::Halt("resume came, but this fold keeps no state".into()))
    }

    fn flush(&mut self, _: Context, _: Vec<Entry>) -> Result<Folded<T, Closed>, Failure> {
        Ok(Folded::empty())
    }
}
