//! The part of a chain between a window and its reducer: which time it follows, and when it closes.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::aggregate::{Aggregate, Totals};
use crate::annotate::Annotate;
use crate::emits::Emits;
use crate::engine::Engine;
use crate::intake::{KeyFn, SourceFn};
use crate::model::Message;
use crate::origin::Closed;
use crate::panes::Panes;
use crate::reducer::{Reduce, Reducer};
use crate::refuse::IntoTime;
use crate::session::Sessions;
use crate::settings::Settings;
use crate::time::duration_ms;
use crate::timing::{Late, Timing};
use crate::window::Window;

/// A chain with a window and no reducer yet.
///
/// Windows follow the created-at stamps of messages unless [`Windowed::event_time`] names another
/// time. They close when their end is at or before the clock: the largest created-at of the batch,
/// or the watermark.
pub struct Windowed<T> {
    source: SourceFn<T>,
    key: Option<KeyFn<T>>,
    settings: Settings,
    window: Window,
    timing: Timing<T>,
}

impl<T: 'static> Windowed<T> {
    pub(crate) fn new(
        source: SourceFn<T>,
        key: Option<KeyFn<T>>,
        settings: Settings,
        window: Window,
    ) -> Self {
        let timing = Timing { event: None, lateness: 0, late: Late::Drop, grace: 0, idle_ms: 0 };
        Self { source, key, settings, window, timing }
    }

    /// Follows a time in the record. The watermark of a partition is the largest event time seen,
    /// less the allowed lateness. A record without a time is left out and counted, under the cause
    /// that [`crate::OrSkip::or_skip`] names.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<Option<i64>>().tumbling(secs(10))
    ///     .event_time(|at| at.or_skip("undated"))
    ///     .aggregate(|a| a.count("n")).sink("counts");
    /// let mut host = TestHost::new(fold);
    /// for payload in ["1000", "null", "2000", "10000"] {
    ///     host.push(payload, 77);
    /// }
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"n":2}"#);
    /// assert_eq!((host.tally("undated"), host.watermark()), (1, Some(10_000)));
    /// ```
    #[must_use]
    pub fn event_time<R: IntoTime>(self, f: impl Fn(&T) -> R + 'static) -> Self {
        self.event_time_with(move |record, _| f(record))
    }

    /// As [`Windowed::event_time`], with the source message at hand.
    #[must_use]
    pub fn event_time_with<R: IntoTime>(mut self, f: impl Fn(&T, &Message) -> R + 'static) -> Self {
        self.timing.event = Some(Box::new(move |record, message| f(record, message).into_time()));
        self
    }

    /// How far the watermark stays behind the largest event time.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).event_time(|at| *at);
    /// let fold = move || fold().allowed_lateness(secs(30)).aggregate(|a| a.count("n")).end();
    /// let mut host = TestHost::new(fold);
    /// host.push("100000", 1);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.watermark(), Some(70_000));
    /// ```
    #[must_use]
    pub fn allowed_lateness(mut self, lateness: Duration) -> Self {
        self.timing.lateness = duration_ms(lateness);
        self
    }

    /// What becomes of records that lie before the watermark.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).event_time(|at| *at)
    ///     .on_late(Late::Side("late".into())).aggregate(|a| a.count("n")).end();
    /// let mut host = TestHost::new(fold);
    /// host.push("25000", 1);
    /// host.push("3000", 2);
    /// host.run_all(1).unwrap();
    /// let late = r#"{"key":"p1","windowStart":0,"windowEnd":10000,"eventTime":3000,"#;
    /// assert!(host.emits()[0].payload.starts_with(late));
    /// assert_eq!(host.tally("late"), 1);
    /// ```
    #[must_use]
    pub fn on_late(mut self, late: Late) -> Self {
        self.timing.late = late;
        self
    }

    /// How long after its end a window closes.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).grace(secs(5)).aggregate(|a| a.count("n"));
    /// let mut host = TestHost::new(move || fold().sink("counts"));
    /// host.push("1", 0);
    /// host.run_all(100).unwrap();
    /// host.flush_at(14_999).unwrap();
    /// assert_eq!(host.emits().len(), 0);
    /// host.flush_at(15_000).unwrap();
    /// assert_eq!(host.emits().len(), 1);
    /// ```
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.timing.grace = duration_ms(grace);
        self
    }

    /// Silence of a partition, in ms, after which the broker's clock becomes its watermark, so that
    /// its last windows close by themselves. 0: never, the default. For event time only; windows of
    /// processing time close by the broker's clock anyway.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).event_time(|at| *at).idle_ms(2_000);
    /// let mut host = TestHost::new(move || fold().aggregate(|a| a.count("n")).sink("counts"));
    /// host.push("1000", 50_000);
    /// host.run_all(100).unwrap();
    /// host.tick(51_999).unwrap();
    /// assert_eq!((host.emits().len(), host.watermark()), (0, Some(1_000)));
    /// host.tick(52_000).unwrap();
    /// assert_eq!((host.emits().len(), host.watermark()), (1, Some(52_000)));
    /// ```
    #[must_use]
    pub fn idle_ms(mut self, idle_ms: u32) -> Self {
        self.timing.idle_ms = idle_ms;
        self
    }

    /// Reduces each window to named numbers: count, sum, min, max, avg.
    #[must_use]
    pub fn aggregate(
        mut self,
        fields: impl FnOnce(Aggregate<T>) -> Aggregate<T>,
    ) -> Emits<Totals, Closed> {
        let fields = fields(Aggregate::new()).finish(&mut self.settings.problems);
        self.reducer(fields)
    }

    /// Reduces each window with a function of the user's own; the accumulator is a state row.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<String>().tumbling(secs(10))
    ///     .reduce(String::new(), |acc, word| *acc += word).sink("words");
    /// let mut host = TestHost::new(fold);
    /// host.push("\"fold\"", 1);
    /// host.push("\"ed\"", 2);
    /// host.run_all(1).unwrap();
    /// host.flush_at(10_000).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"value":"folded"}"#);
    /// ```
    #[must_use]
    pub fn reduce<A>(self, initial: A, f: impl Fn(&mut A, &T) + 'static) -> Emits<A, Closed>
    where
        A: Clone + Serialize + DeserializeOwned + 'static,
    {
        self.reducer(Reduce { initial, f })
    }

    fn reducer<R: Reducer<T> + 'static>(mut self, reducer: R) -> Emits<R::Acc, Closed> {
        self.check_timing();
        let Self { source, key, settings, window, timing } = self;
        let engine: Box<dyn Engine<R::Acc, Closed>> = match window {
            Window::Session { gap } => Box::new(Sessions::new(source, key, gap, timing, reducer)),
            _ => Box::new(Panes::new(source, key, window, timing, reducer)),
        };
        Emits::new(engine, settings)
    }

    /// No reducer: each record goes on at once, with its window beside it, once for each window it
    /// falls into. No state is kept and nothing is late. Not for sessions, whose windows are not
    /// known when a record comes.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).annotate()
    ///     .map(|v, window| (v, window.start)).sink("dated");
    /// let mut host = TestHost::new(fold);
    /// host.push("7", 12_345);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"value":[7,"1970-01-01T00:00:10Z"]}"#);
    /// ```
    #[must_use]
    pub fn annotate(mut self) -> Emits<T, Closed>
    where
        T: Clone,
    {
        self.check_timing();
        if matches!(self.window, Window::Session { .. }) {
            self.settings.problems.push("session: a reducer is needed".into());
        }
        let Self { source, key, settings, window, timing } = self;
        Emits::new(Box::new(Annotate { source, key, window, timing }), settings)
    }

    fn check_timing(&mut self) {
        let Timing { event, lateness, late, idle_ms, .. } = &self.timing;
        if event.is_none() && (*lateness, late, *idle_ms) != (0, &Late::Drop, 0) {
            let problem = "allowed_lateness, on_late and idle_ms need event_time";
            self.settings.problems.push(problem.into());
        }
    }
}
