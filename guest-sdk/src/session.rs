//! Session windows: a key's records with at most a gap between them.
//!
//! A session's row is due at lastEventTime + gap + grace, so the touched rows and the due ones give
//! the same result as a read of the whole shard.

use std::collections::BTreeMap;

use crate::engine::{Engine, Folded, Next};
use crate::intake::{KeyFn, Record, SourceFn};
use crate::model::{Context, Entry, Failure, Manifest, Message, Op, Reads, Upsert};
use crate::origin::Closed;
use crate::reducer::Reducer;
use crate::timing::{Call, Timing};
use crate::window::{Row, Window, parse_state_key, state_key};

pub(crate) struct Sessions<T, R: Reducer<T>> {
    source: SourceFn<T>,
    key: Option<KeyFn<T>>,
    gap: i64,
    timing: Timing<T>,
    reducer: R,
    pending: Option<Pending<T>>,
}

struct Pending<T> {
    records: Vec<Record<T>>,
    clock: Option<i64>,
    call: Call,
}

/// What is known of a key.
struct Session<A> {
    acc: A,
    start: i64,
    last: i64,
    /// A row is stored, of this session or of one before it.
    seeded: bool,
    touched: bool,
}

type Open<A> = BTreeMap<String, Session<A>>;
type Values<A> = Vec<(A, Closed)>;

impl<T, R: Reducer<T>> Sessions<T, R> {
    pub(crate) fn new(
        source: SourceFn<T>,
        key: Option<KeyFn<T>>,
        gap: i64,
        timing: Timing<T>,
        reducer: R,
    ) -> Self {
        Self { source, key, gap, timing, reducer, pending: None }
    }

    fn tag(&self) -> String {
        Window::Session { gap: self.gap }.tag()
    }

    fn load(&self, rows: &[Entry]) -> Result<Open<R::Acc>, Failure> {
        let tag = self.tag();
        let mut open = BTreeMap::new();
        for row in rows {
            let Some(("open", key)) = parse_state_key(&tag, &row.key) else {
                continue;
            };
            let stored = Row::parse(&row.value);
            let acc = self
                .reducer
                .load(stored.acc(&row.value))
                .map_err(|e| Failure::Halt(format!("the state row {:?}: {e}", row.key)))?;
            let (start, last) = stored.session();
            let session = Session { acc, start, last, seeded: true, touched: false };
            open.insert(key.to_owned(), session);
        }
        Ok(open)
    }

    /// Folds one record; a silence longer than the gap ends the session before it.
    fn fold(
        &self,
        open: &mut Open<R::Acc>,
        record: Record<T>,
        call: &Call,
        values: &mut Values<R::Acc>,
    ) {
        let fresh = || Session {
            acc: self.reducer.initial(),
            start: record.time,
            last: record.time,
            seeded: false,
            touched: true,
        };
        let session = open.entry(record.key.clone()).or_insert_with(fresh);
        if session.last.saturating_add(self.gap) < record.time {
            let seeded = session.seeded;
            let ended = std::mem::replace(session, Session { seeded, ..fresh() });
            values.push(self.ended(record.key, ended, call));
        }
        session.last = session.last.max(record.time);
        session.touched = true;
        self.reducer.step(&mut session.acc, &record.data);
    }

    fn ended(&self, key: String, session: Session<R::Acc>, call: &Call) -> (R::Acc, Closed) {
        let end = session.last.saturating_add(self.gap);
        (session.acc, Closed::new(key, session.start, end, call.source.clone()))
    }

    /// Ends what the clock has passed and keeps the rest.
    fn sweep(
        &self,
        open: Open<R::Acc>,
        clock: Option<i64>,
        call: Call,
        mut values: Values<R::Acc>,
    ) -> Result<Folded<R::Acc, Closed>, Failure> {
        let tag = self.tag();
        let mut ops = Vec::new();
        for (key, session) in open {
            let row_key = state_key(&tag, "open", &key);
            let due = session.last.saturating_add(self.gap).saturating_add(self.timing.grace);
            if clock.is_some_and(|clock| due <= clock) {
                // The row may be that of a session which this batch ended: it must go all the same.
                if session.seeded {
                    ops.push(Op::Delete(row_key));
                }
                values.push(self.ended(key, session, &call));
            } else if session.touched {
                let value = self.row(&session).map_err(Failure::Halt)?;
                ops.push(Op::Upsert(Upsert { key: row_key, value, due_at: Some(due) }));
            }
        }
        Ok(call.finish(values, ops))
    }

    fn row(&self, session: &Session<R::Acc>) -> Result<String, String> {
        let mut out = br#"{"acc":"#.to_vec();
        self.reducer.store(&session.acc, &mut out)?;
        let (start, last) = (session.start, session.last);
        let bounds = format!(r#","sessionStart":{start},"lastEventTime":{last}}}"#);
        out.extend(bounds.into_bytes());
        crate::json::text(out)
    }
}

impl<T, R: Reducer<T>> Engine<R::Acc, Closed> for Sessions<T, R> {
    fn describe(&self, manifest: &mut Manifest) {
        self.timing.describe(manifest);
    }

    fn start(
        &mut self,
        ctx: Context,
        batch: Vec<Message>,
    ) -> Result<Next<R::Acc, Closed>, Failure> {
        let key = self.key.as_ref();
        let window = Window::Session { gap: self.gap };
        let admitted = self.timing.admit(&self.source, key, window, &ctx, &batch)?;
        let (records, clock, call) = (admitted.records, admitted.clock, admitted.call);
        let tag = self.tag();
        let mut keys: Vec<&str> = records.iter().map(|record| record.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys: Vec<String> = keys.iter().map(|key| state_key(&tag, "open", key)).collect();
        if keys.is_empty() && clock.is_none() {
            return Ok(Next::Done(call.finish(Vec::new(), Vec::new())));
        }
        self.pending = Some(Pending { records, clock, call });
        Ok(Next::Need(Reads { keys, prefixes: Vec::new(), due: clock }))
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Next<R::Acc, Closed>, Failure> {
        let Some(Pending { records, clock, call }) = self.pending.take() else {
            return Err(Failure::Halt("resume came without a batch that waits for rows".into()));
        };
        let mut open = self.load(&rows)?;
        let mut values = Vec::new();
        for record in records {
            self.fold(&mut open, record, &call, &mut values);
        }
        self.sweep(open, clock, call, values).map(Next::Done)
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Folded<R::Acc, Closed>, Failure> {
        let (clock, call) = self.timing.flush(&ctx);
        let mut open = self.load(&rows)?;
        // A row that came before its time gets the due time that it should have.
        open.values_mut().for_each(|session| session.touched = true);
        self.sweep(open, Some(clock), call, Vec::new())
    }
}
