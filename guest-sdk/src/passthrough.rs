//! The engine of chains without state: every record goes on at once.

use crate::engine::{Engine, Folded, Next};
use crate::intake::{self, KeyFn, Source, SourceFn, plain_key};
use crate::model::{Context, Entry, Failure, Manifest, Message, Outcome};
use crate::origin::Passed;

pub(crate) struct Passthrough<T> {
    pub(crate) source: SourceFn<T>,
    pub(crate) key: Option<KeyFn<T>>,
}

impl<T> Engine<T, Passed> for Passthrough<T> {
    fn describe(&self, _manifest: &mut Manifest) {}

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Next<T, Passed>, Failure> {
        let time = |_: &T, message: &Message| Ok(message.created_at);
        let key = self.key.as_ref();
        let mut intake = intake::read(&self.source, key, &ctx, &batch, &time, plain_key)?;
        let source = Source::of(&ctx);
        let tallies = intake.tallies(batch.len()).into_list();
        let passed = |r: intake::Record<T>| (r.data, Passed::new(r.key, source.clone()));
        Ok(Next::Done(Folded {
            values: intake.records.into_iter().map(passed).collect(),
            outcome: Outcome { rejects: intake.rejects, tallies, ..Outcome::default() },
        }))
    }

    fn resume(&mut self, _rows: Vec<Entry>) -> Result<Next<T, Passed>, Failure> {
        Err(Failure::Halt("resume came, but this fold keeps no state".into()))
    }

    fn flush(&mut self, _: Context, _: Vec<Entry>) -> Result<Folded<T, Passed>, Failure> {
        Ok(Folded::empty())
    }
}
