//! Windows on a grid: tumbling, sliding and cron. Fold and close, rows in order of their keys.
//!
//! The fold asks for the rows that the batch touches and for those that are due at its clock. Every
//! row is written with the due time windowEnd + grace, so the two together give the same result as
//! a read of the whole shard.

use std::collections::BTreeMap;

use crate::engine::{Engine, Folded, Next};
use crate::intake::{KeyFn, Record, SourceFn};
use crate::model::{Context, Entry, Failure, Manifest, Message, Op, Reads, Upsert};
use crate::origin::Closed;
use crate::reducer::Reducer;
use crate::time::Timestamp;
use crate::timing::{Call, Timing};
use crate::window::{Row, Window, parse_state_key, state_key};

pub(crate) struct Panes<T, R: Reducer<T>> {
    pub(crate) source: SourceFn<T>,
    pub(crate) key: Option<KeyFn<T>>,
    pub(crate) window: Window,
    pub(crate) timing: Timing<T>,
    pub(crate) reducer: R,
    pending: Option<Pending<T, R::Acc>>,
}

/// A batch that waits for its rows.
struct Pending<T, A> {
    records: Vec<Record<T>>,
    assigned: Assigned<A>,
    clock: Option<i64>,
    call: Call,
}

/// Panes in order of their state keys, and which record goes into which, in order of the batch.
type Assigned<A> = (Vec<Pane<A>>, Vec<(usize, usize)>);

struct Pane<A> {
    state_key: String,
    key: String,
    start: i64,
    end: i64,
    acc: Option<A>,
    /// A row of it is stored.
    seeded: bool,
    touched: bool,
}

impl<T, R: Reducer<T>> Panes<T, R> {
    pub(crate) fn new(
        source: SourceFn<T>,
        key: Option<KeyFn<T>>,
        window: Window,
        timing: Timing<T>,
        reducer: R,
    ) -> Self {
        Self { source, key, window, timing, reducer, pending: None }
    }

    fn assign(&self, records: &[Record<T>]) -> Assigned<R::Acc> {
        // State keys have the start in fixed width before the key, so this is their order.
        let mut index: BTreeMap<(i64, &str), usize> = BTreeMap::new();
        let mut touches = Vec::with_capacity(records.len());
        for (at, record) in records.iter().enumerate() {
            for start in self.window.starts(record.time) {
                let next = index.len();
                let pane = *index.entry((start, record.key.as_str())).or_insert(next);
                touches.push((at, pane));
            }
        }
        let tag = self.window.tag();
        let mut window_key = (None, String::new());
        let mut ranks = vec![0; index.len()];
        let mut panes = Vec::with_capacity(index.len());
        for ((start, key), first) in index {
            if window_key.0 != Some(start) {
                window_key = (Some(start), Timestamp(start).iso());
            }
            if let Some(rank) = ranks.get_mut(first) {
                *rank = panes.len();
            }
            panes.push(Pane {
                state_key: state_key(&tag, &window_key.1, key),
                key: key.to_owned(),
                start,
                end: start + self.window.length(),
                acc: None,
                seeded: false,
                touched: true,
            });
        }
        for (_, pane) in &mut touches {
            *pane = ranks.get(*pane).copied().unwrap_or_default();
        }
        (panes, touches)
    }

    /// Reads the rows of this operator into their panes; rows of others are passed over.
    fn seed(&self, panes: &mut Vec<Pane<R::Acc>>, rows: &[Entry]) -> Result<(), Failure> {
        let tag = self.window.tag();
        let asked = panes.len();
        for row in rows {
            let Some((window_key, key)) = parse_state_key(&tag, &row.key) else {
                continue;
            };
            let stored = Row::parse(&row.value);
            let acc = self
                .reducer
                .load(stored.acc(&row.value))
                .map_err(|e| Failure::Halt(format!("the state row {:?}: {e}", row.key)))?;
            let (start, end) = stored.bounds(window_key);
            let known = panes.get(..asked).and_then(|panes| {
                panes.binary_search_by(|pane| pane.state_key.as_str().cmp(&row.key)).ok()
            });
            match known.and_then(|at| panes.get_mut(at)) {
                Some(pane) => {
                    (pane.acc, pane.seeded) = (Some(acc), true);
                    (pane.start, pane.end) = (start, end);
                }
                None => panes.push(Pane {
                    state_key: row.key.clone(),
                    key: key.to_owned(),
                    start,
                    end,
                    acc: Some(acc),
                    seeded: true,
                    touched: false,
                }),
            }
        }
        Ok(())
    }

    /// Emits what the clock has passed and keeps the rest.
    fn close(
        &self,
        mut panes: Vec<Pane<R::Acc>>,
        clock: Option<i64>,
        call: Call,
    ) -> Result<Folded<R::Acc, Closed>, Failure> {
        panes.sort_by(|a, b| a.state_key.cmp(&b.state_key));
        let (mut values, mut ops) = (Vec::new(), Vec::new());
        for pane in panes {
            let Some(acc) = pane.acc else { continue };
            let due = pane.end.saturating_add(self.timing.grace);
            if clock.is_some_and(|clock| due <= clock) {
                let closed = Closed::new(pane.key, pane.start, pane.end, call.source.clone());
                values.push((acc, closed));
                if pane.seeded {
                    ops.push(Op::Delete(pane.state_key));
                }
            } else if pane.touched {
                let value = self.row(&acc, pane.start, pane.end).map_err(Failure::Halt)?;
                ops.push(Op::Upsert(Upsert { key: pane.state_key, value, due_at: Some(due) }));
            }
        }
        Ok(call.finish(values, ops))
    }

    fn row(&self, acc: &R::Acc, start: i64, end: i64) -> Result<String, String> {
        let mut out = br#"{"acc":"#.to_vec();
        self.reducer.store(acc, &mut out)?;
        out.extend(format!(r#","windowStart":{start},"windowEnd":{end}}}"#).into_bytes());
        crate::json::text(out)
    }
}

impl<T, R: Reducer<T>> Engine<R::Acc, Closed> for Panes<T, R> {
    fn describe(&self, manifest: &mut Manifest) {
        self.timing.describe(manifest);
    }

    fn start(
        &mut self,
        ctx: Context,
        batch: Vec<Message>,
    ) -> Result<Next<R::Acc, Closed>, Failure> {
        let key = self.key.as_ref();
        let admitted = self.timing.admit(&self.source, key, self.window, &ctx, &batch)?;
        let assigned = self.assign(&admitted.records);
        let reads = Reads {
            keys: assigned.0.iter().map(|pane| pane.state_key.clone()).collect(),
            prefixes: Vec::new(),
            due: admitted.clock,
        };
        if reads == Reads::default() {
            return Ok(Next::Done(admitted.call.finish(Vec::new(), Vec::new())));
        }
        let (records, clock, call) = (admitted.records, admitted.clock, admitted.call);
        self.pending = Some(Pending { records, assigned, clock, call });
        Ok(Next::Need(reads))
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Next<R::Acc, Closed>, Failure> {
        let Some(pending) = self.pending.take() else {
            return Err(Failure::Halt("resume came without a batch that waits for rows".into()));
        };
        let Pending { records, assigned: (mut panes, touches), clock, call } = pending;
        self.seed(&mut panes, &rows)?;
        for (record, pane) in touches {
            if let (Some(record), Some(pane)) = (records.get(record), panes.get_mut(pane)) {
                let acc = pane.acc.get_or_insert_with(|| self.reducer.initial());
                self.reducer.step(acc, &record.data);
            }
        }
        self.close(panes, clock, call).map(Next::Done)
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Folded<R::Acc, Closed>, Failure> {
        let (clock, call) = self.timing.flush(&ctx);
        let mut panes = Vec::with_capacity(rows.len());
        self.seed(&mut panes, &rows)?;
        // A row that came before its time was written by an outside worker, which knows no grace
        // here: writing it again gives it the due time that it should have.
        panes.iter_mut().for_each(|pane| pane.touched = true);
        self.close(panes, Some(clock), call)
    }
}
