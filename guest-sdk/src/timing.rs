//! Which clock a window follows: created-at stamps, or event time with its watermark.
//!
//! A record is late if it lies before the watermark that the last committed outcome left; the order
//! inside a batch never makes one late. The watermark goes out with the outcome and the host keeps
//! it; nothing here writes a state row for it.

use std::rc::Rc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::engine::Folded;
use crate::intake::{self, KeyFn, Record, Source, SourceFn, plain_key};
use crate::json;
use crate::model::{Context, Emit, Failure, Manifest, Message, Op, Outcome, Reject, Tally, Timers};
use crate::refuse::{Refuse, Tallies};
use crate::window::Window;

/// What becomes of a record that lies before the watermark.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Late {
    /// It is left out and counted under the cause `late`.
    #[default]
    Drop,
    /// It is folded like any other; a closed window opens again and gives a second, partial result.
    Include,
    /// It is left out and counted, and goes to this queue with its window: an object with `key`,
    /// `windowStart`, `windowEnd` (not for sessions), `eventTime`, `watermark`, and the source
    /// message's `payload` as it came. One message for each window of the record.
    Side(String),
}

/// Event time of a record.
pub(crate) type TimeFn<T> = Box<dyn Fn(&T, &Message) -> Result<i64, Refuse>>;

pub(crate) struct Timing<T> {
    /// None: processing time.
    pub(crate) event: Option<TimeFn<T>>,
    pub(crate) lateness: i64,
    pub(crate) late: Late,
    pub(crate) grace: i64,
    pub(crate) idle_ms: u32,
}

/// A batch after the late rule.
pub(crate) struct Admitted<T> {
    pub(crate) records: Vec<Record<T>>,
    /// What windows close by; None: nothing closes.
    pub(crate) clock: Option<i64>,
    pub(crate) call: Call,
}

/// What a call gives besides values and state.
pub(crate) struct Call {
    pub(crate) source: Rc<Source>,
    watermark: Option<i64>,
    emits: Vec<Emit>,
    rejects: Vec<Reject>,
    tallies: Vec<Tally>,
}

impl Call {
    pub(crate) fn finish<V, O>(self, values: Vec<(V, O)>, ops: Vec<Op>) -> Folded<V, O> {
        let Self { watermark, emits, rejects, tallies, .. } = self;
        let outcome = Outcome { ops, emits, rejects, tallies, watermark, ..Outcome::default() };
        Folded { values, outcome }
    }
}

impl<T> Timing<T> {
    pub(crate) fn describe(&self, manifest: &mut Manifest) {
        if self.event.is_some() {
            manifest.timers = Timers::Watermark;
            manifest.idle_ms = self.idle_ms;
        }
        if let Late::Side(queue) = &self.late {
            manifest.sinks.push(queue.clone());
        }
    }

    /// The time function for a batch: also refuses instants that no window key can be made of.
    pub(crate) fn judge(
        &self,
        window: Window,
    ) -> impl Fn(&T, &Message) -> Result<i64, Refuse> + '_ {
        move |record, message| {
            let time = match &self.event {
                Some(event) => event(record, message)?,
                None => message.created_at,
            };
            window.check(time).map_err(Refuse::Reject)?;
            Ok(time)
        }
    }

    /// Reads a batch, advances the clock, and deals with what is late.
    pub(crate) fn admit(
        &self,
        source: &SourceFn<T>,
        key: Option<&KeyFn<T>>,
        window: Window,
        ctx: &Context,
        batch: &[Message],
    ) -> Result<Admitted<T>, Failure> {
        let judge = self.judge(window);
        let mut intake = intake::read(source, key, ctx, batch, &judge, plain_key)?;
        let mut tallies = intake.tallies(batch.len());
        let mut call = Call {
            source: Source::of(ctx),
            watermark: None,
            emits: Vec::new(),
            rejects: intake.rejects,
            tallies: Vec::new(),
        };
        let mut records = intake.records;
        let mut clock = Some(ctx.now);
        if self.event.is_some() {
            let reached = records.iter().map(|r| r.time.saturating_sub(self.lateness)).max();
            if let Some(watermark) = ctx.watermark {
                self.part_late(&mut records, watermark, window, batch, &mut call, &mut tallies)?;
            }
            // None is below every instant.
            clock = ctx.watermark.max(reached);
            call.watermark = clock;
        }
        call.tallies = tallies.into_list();
        Ok(Admitted { records, clock, call })
    }

    fn part_late(
        &self,
        records: &mut Vec<Record<T>>,
        watermark: i64,
        window: Window,
        batch: &[Message],
        call: &mut Call,
        tallies: &mut Tallies,
    ) -> Result<(), Failure> {
        if self.late == Late::Include {
            return Ok(());
        }
        for record in records.extract_if(.., |record| record.time < watermark) {
            tallies.add("late");
            let Late::Side(queue) = &self.late else {
                continue;
            };
            let payload = batch.get(record.index).map_or("null", |m| m.payload.as_str());
            let starts: Vec<i64> = window.starts(record.time).collect();
            for &start in starts.iter().rev() {
                let late = LateRecord::new(&record, (start, window.length()), watermark, payload)?;
                call.emits.push(Emit {
                    queue: queue.clone(),
                    partition: call.source.name().to_owned(),
                    payload: json::payload(&late).map_err(Failure::Halt)?,
                    transaction_id: None,
                });
            }
        }
        Ok(())
    }

    /// What a flush closes by, and the watermark that it leaves. A tick beyond the watermark is the
    /// host's decision that time has passed, so what comes later from before it is late.
    pub(crate) fn flush(&self, ctx: &Context) -> (i64, Call) {
        let passed = self.event.is_some() && ctx.watermark.is_none_or(|w| ctx.now > w);
        let clock = match ctx.watermark {
            Some(watermark) if self.event.is_some() && !passed => watermark,
            _ => ctx.now,
        };
        let call = Call {
            source: Source::of(ctx),
            watermark: passed.then_some(ctx.now),
            emits: Vec::new(),
            rejects: Vec::new(),
            tallies: Vec::new(),
        };
        (clock, call)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LateRecord<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_start: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_end: Option<i64>,
    event_time: i64,
    watermark: i64,
    payload: &'a RawValue,
}

impl<'a> LateRecord<'a> {
    fn new<T>(
        record: &'a Record<T>,
        (start, length): (i64, i64),
        watermark: i64,
        payload: &'a str,
    ) -> Result<Self, Failure> {
        let payload = serde_json::from_str(payload)
            .map_err(|e| Failure::Halt(format!("a late payload is no JSON: {e}")))?;
        let windowed = length > 0;
        Ok(Self {
            key: &record.key,
            window_start: windowed.then_some(start),
            window_end: windowed.then_some(start + length),
            event_time: record.time,
            watermark,
            payload,
        })
    }
}
