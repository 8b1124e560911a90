//! The tail of a chain: stages on what a window or gate gave, and the sink.

use std::fmt::Display;

use serde::Serialize;

use crate::engine::{Engine, Staged};
use crate::json::{self, Document, Json};
use crate::model::{Emit, Failure};
use crate::origin::{Closed, Origin};
use crate::pipeline::Pipeline;
use crate::refuse::Refuse;
use crate::settings::Settings;

/// The part of a chain after its window, gate or source: values `V` that come from `O`.
///
/// ```
/// use foldmq_guest::{prelude::*, testing::TestHost};
/// let fold = || stream::<f64>().tumbling(secs(60)).aggregate(|a| a.sum("v", |v| *v));
/// let mut host = TestHost::new(move || fold()
///     .map(|totals, window| (totals["v"].unwrap_or(0.0), window.end))
///     .filter(|(sum, _), _| *sum > 1.0)
///     .flat_map(|(sum, end), _| [format!("{sum} until {end}"), "and again".into()])
///     .sink_by("sums", |text, window| format!("{}-{}", window.key, text.len())));
/// host.push("1.5", 0);
/// host.run_all(100).unwrap();
/// host.flush_at(60_000).unwrap();
/// assert_eq!(host.emits()[0].payload, r#"{"value":"1.5 until 1970-01-01T00:01:00Z"}"#);
/// assert!(host.emits()[1].partition.ends_with("-9"));
/// ```
pub struct Emits<V, O> {
    pub(crate) engine: Box<dyn Engine<V, O>>,
    settings: Settings,
}

impl<V: 'static, O: Origin + Clone + 'static> Emits<V, O> {
    pub(crate) fn new(engine: Box<dyn Engine<V, O>>, settings: Settings) -> Self {
        Self { engine, settings }
    }

    fn stage<U: 'static>(
        self,
        stage: impl Fn(V, &O, &mut dyn FnMut(Result<U, Refuse>)) + 'static,
    ) -> Emits<U, O> {
        Emits { engine: Box::new(Staged { inner: self.engine, stage }), settings: self.settings }
    }

    /// Replaces each value.
    #[must_use]
    pub fn map<U: 'static>(self, f: impl Fn(V, &O) -> U + 'static) -> Emits<U, O> {
        self.stage(move |value, origin, out| out(Ok(f(value, origin))))
    }

    /// Replaces each value, or leaves it out and counts it, or fails. There is no message to
    /// reject here any more: [`Refuse::Reject`] halts the query.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(1)).aggregate(|a| a.max("top", |v| *v))
    ///     .try_map(|totals, _| totals["top"].filter(|top| *top > 5.0).or_skip("low"))
    ///     .sink("tops");
    /// let mut host = TestHost::new(fold);
    /// host.push("3", 0);
    /// host.push("8", 1_000);
    /// host.run_all(100).unwrap();
    /// host.flush_at(2_000).unwrap();
    /// assert_eq!((host.tally("low"), host.emits().len()), (1, 1));
    /// ```
    #[must_use]
    pub fn try_map<U: 'static>(
        self,
        f: impl Fn(V, &O) -> Result<U, Refuse> + 'static,
    ) -> Emits<U, O> {
        self.stage(move |value, origin, out| out(f(value, origin)))
    }

    /// Keeps the values for which `keep` holds.
    #[must_use]
    pub fn filter(self, keep: impl Fn(&V, &O) -> bool + 'static) -> Self {
        self.stage(move |value, origin, out| {
            if keep(&value, origin) {
                out(Ok(value));
            }
        })
    }

    /// Replaces each value by any number of values, in order; all keep key and window.
    #[must_use]
    pub fn flat_map<I>(self, f: impl Fn(V, &O) -> I + 'static) -> Emits<I::Item, O>
    where
        I: IntoIterator,
        I::Item: 'static,
    {
        self.stage(move |value, origin, out| {
            f(value, origin).into_iter().for_each(|item| out(Ok(item)));
        })
    }

    /// Ends the chain: each value becomes a message of `queue`, in the partition that is named
    /// like the source partition. A JSON object is the payload itself, anything else goes out as
    /// `{"value": ...}`. Nothing is added; a chain that wants the window maps it in.
    #[must_use]
    pub fn sink(self, queue: impl Into<String>) -> Pipeline
    where
        V: Serialize,
    {
        self.sink_by(queue, |_, origin| origin.default_partition().to_owned())
    }

    /// As [`Emits::sink`], into a fixed partition.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let mut host = TestHost::new(|| stream::<i64>().sink_to("all", "one"));
    /// host.push("3", 0);
    /// host.run_all(100).unwrap();
    /// assert_eq!((&*host.emits()[0].queue, &*host.emits()[0].partition), ("all", "one"));
    /// ```
    #[must_use]
    pub fn sink_to(self, queue: impl Into<String>, partition: impl Into<String>) -> Pipeline
    where
        V: Serialize,
    {
        let partition = partition.into();
        self.sink_by(queue, move |_, _| partition.clone())
    }

    /// As [`Emits::sink`], into the partition that a function of the value names.
    #[must_use]
    pub fn sink_by<N: Display>(
        self,
        queue: impl Into<String>,
        partition: impl Fn(&V, &O) -> N + 'static,
    ) -> Pipeline
    where
        V: Serialize,
    {
        let queue = queue.into();
        let to = queue.clone();
        let emits = self.try_map(move |value, origin| {
            let payload = json::payload(&value).map_err(Failure::Halt)?;
            let partition = partition(&value, origin).to_string();
            Ok(Emit { queue: to.clone(), partition, payload, transaction_id: None })
        });
        Pipeline::new(emits.engine, emits.settings, Some(queue))
    }

    /// Ends the chain with a function that sees each value before the commit; it may log.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().gate(|_: &mut (), v, _| *v < 9)
    ///     .for_each(|v, at| log::info(format!("{v} of {}", at.partition())));
    /// let mut host = TestHost::new(fold);
    /// host.push("3", 0);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.logs()[0].1, "3 of lane");
    /// ```
    #[must_use]
    pub fn for_each(self, f: impl Fn(V, &O) + 'static) -> Pipeline {
        self.map(f).end()
    }

    /// Ends a chain that emits nothing.
    #[must_use]
    pub fn end(self) -> Pipeline {
        let emits = self.flat_map(|_, _| None::<Emit>);
        Pipeline::new(emits.engine, emits.settings, None)
    }
}

impl<V: Serialize + 'static> Emits<V, Closed> {
    /// Puts key, start and end of the window before the members of each value, under these names;
    /// a value that is no object becomes the member `value`.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).aggregate(|a| a.count("n"))
    ///     .with_window("lane", "from", "until").sink("counts");
    /// let mut host = TestHost::new(fold);
    /// host.push("1", 0);
    /// host.run_all(100).unwrap();
    /// host.flush_at(10_000).unwrap();
    /// let payload = &host.emits()[0].payload;
    /// assert!(payload.starts_with(r#"{"lane":"p1","from":"1970-01-01T00:00:00Z","until":"#));
    /// assert!(payload.ends_with(r#""1970-01-01T00:00:10Z","n":1}"#));
    /// ```
    #[must_use]
    pub fn with_window(
        self,
        key: &'static str,
        start: &'static str,
        end: &'static str,
    ) -> Emits<Document, Closed> {
        self.try_map(move |value, window| {
            let head = [
                (key, Json::Text(&window.key)),
                (start, Json::Time(window.start)),
                (end, Json::Time(window.end)),
            ];
            Ok(json::with_members(&head, &value).map_err(Failure::Halt)?)
        })
    }
}
