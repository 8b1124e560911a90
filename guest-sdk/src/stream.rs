//! The head of every chain: what a message is, the stages before the window or gate, and the key.

use std::fmt::Display;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::emits::Emits;
use crate::intake::{KeyFn, Meta, SourceFn};
use crate::origin::Passed;
use crate::passthrough::Passthrough;
use crate::pipeline::Pipeline;
use crate::refuse::Refuse;
use crate::settings::Settings;
use crate::window::{Cron, Window};
use crate::windowed::Windowed;

/// Starts a chain over messages whose payload reads as `T`. A payload that does not becomes a dead
/// letter with serde's error text as the reason; its neighbours are folded.
///
/// ```
/// use foldmq_guest::{prelude::*, testing::TestHost};
/// let mut host = TestHost::new(|| stream::<i64>().map(|v| v * 2).sink("doubled"));
/// host.push("21", 1);
/// host.push("\"x\"", 2);
/// host.run_all(100).unwrap();
/// assert_eq!(host.emits()[0].payload, r#"{"value":42}"#);
/// assert!(host.dead_letters()[0].reason.contains("invalid type"));
/// ```
#[must_use]
pub fn stream<T: DeserializeOwned + 'static>() -> Stream<T> {
    Stream {
        source: Box::new(|meta, out| {
            out(serde_json::from_str(&meta.message.payload)
                .map_err(|e| Refuse::Reject(e.to_string())))
        }),
        key: None,
        settings: Settings::default(),
        keying: PhantomData,
    }
}

/// A chain that has no key yet: records of one partition belong together.
#[derive(Debug)]
pub struct Unkeyed;

/// A chain that has a key.
#[derive(Debug)]
pub struct Keyed;

/// The part of a chain before its window, gate or sink.
///
/// Stages come before [`Stream::key_by`]: they run before it in any case, so the types allow no
/// other order.
pub struct Stream<T, K = Unkeyed> {
    source: SourceFn<T>,
    key: Option<KeyFn<T>>,
    settings: Settings,
    keying: PhantomData<K>,
}

impl<T: 'static> Stream<T> {
    fn stage<U: 'static>(
        self,
        stage: impl Fn(&Meta<'_>, T, &mut dyn FnMut(Result<U, Refuse>)) + 'static,
    ) -> Stream<U> {
        let before = self.source;
        let source: SourceFn<U> = Box::new(move |meta, out| {
            before(meta, &mut |record| match record {
                Ok(record) => stage(meta, record, out),
                Err(refused) => out(Err(refused)),
            });
        });
        Stream { source, key: None, settings: self.settings, keying: PhantomData }
    }

    /// Replaces each record.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let mut host = TestHost::new(|| stream::<String>().map(|s| s.len()).sink("lengths"));
    /// host.push(r#""four""#, 1);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"value":4}"#);
    /// ```
    #[must_use]
    pub fn map<U: 'static>(self, f: impl Fn(T) -> U + 'static) -> Stream<U> {
        self.stage(move |_, record, out| out(Ok(f(record))))
    }

    /// Replaces each record, with the message and its partition at hand.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().map_with(|v, m| (v, m.message.created_at)).sink("stamped");
    /// let mut host = TestHost::new(fold);
    /// host.push("7", 1_000);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"value":[7,1000]}"#);
    /// ```
    #[must_use]
    pub fn map_with<U: 'static>(self, f: impl Fn(T, &Meta<'_>) -> U + 'static) -> Stream<U> {
        self.stage(move |meta, record, out| out(Ok(f(record, meta))))
    }

    /// Replaces each record or gives a verdict on it: leave out and count, dead-letter, or fail.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let root = |v: f64| match v {
    ///     v if v < 0.0 => Err(Refuse::Reject("negative".into())),
    ///     v => Ok(v.sqrt()),
    /// };
    /// let mut host = TestHost::new(move || stream::<f64>().try_map(root).sink("roots"));
    /// host.push("-1", 1);
    /// host.push("9", 2);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.dead_letters()[0].reason, "negative");
    /// assert_eq!(host.emits()[0].payload, r#"{"value":3}"#);
    /// ```
    #[must_use]
    pub fn try_map<U: 'static>(self, f: impl Fn(T) -> Result<U, Refuse> + 'static) -> Stream<U> {
        self.stage(move |_, record, out| out(f(record)))
    }

    /// Keeps the records for which `keep` holds.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let mut host = TestHost::new(|| stream::<i64>().filter(|v| v % 2 == 0).sink("even"));
    /// host.push("3", 1);
    /// host.push("4", 2);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits().len(), 1);
    /// ```
    #[must_use]
    pub fn filter(self, keep: impl Fn(&T) -> bool + 'static) -> Self {
        self.stage(move |_, record, out| {
            if keep(&record) {
                out(Ok(record));
            }
        })
    }

    /// Leaves out the records for which `skip` holds and counts them under a cause, for status and
    /// metrics.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().skip_if("odd", |v| v % 2 == 1).sink("even");
    /// let mut host = TestHost::new(fold);
    /// host.push("3", 1);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.tally("odd"), 1);
    /// ```
    #[must_use]
    pub fn skip_if(self, cause: &'static str, skip: impl Fn(&T) -> bool + 'static) -> Self {
        self.stage(move |_, record, out| {
            let verdict = if skip(&record) { Err(Refuse::Skip(cause.into())) } else { Ok(record) };
            out(verdict);
        })
    }

    /// Replaces each record by any number of records, in order.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let mut host = TestHost::new(|| stream::<Vec<i64>>().flat_map(|list| list).sink("items"));
    /// host.push("[1, 2, 3]", 1);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits().len(), 3);
    /// ```
    #[must_use]
    pub fn flat_map<I>(self, f: impl Fn(T) -> I + 'static) -> Stream<I::Item>
    where
        I: IntoIterator,
        I::Item: 'static,
    {
        self.stage(move |_, record, out| f(record).into_iter().for_each(|item| out(Ok(item))))
    }

    /// Groups records: windows and gates keep one state per key. Without it the key is the id of
    /// the source partition. A key with U+001F or U+0000 makes its message a dead letter.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().key_by(|v| v % 2).tumbling(secs(60))
    ///     .aggregate(|a| a.count("n")).map(|_, w| w.key.clone()).sink("keys");
    /// let mut host = TestHost::new(fold);
    /// host.push("4", 0);
    /// host.push("5", 0);
    /// host.run_all(100).unwrap();
    /// host.flush_at(60_000).unwrap();
    /// assert_eq!(host.emits()[1].payload, r#"{"value":"1"}"#);
    /// ```
    #[must_use]
    pub fn key_by<N: Display>(self, f: impl Fn(&T) -> N + 'static) -> Stream<T, Keyed> {
        let key: KeyFn<T> = Box::new(move |record| f(record).to_string());
        let Self { source, settings, .. } = self;
        Stream { source, key: Some(key), settings, keying: PhantomData }
    }
}

impl<T: 'static, K> Stream<T, K> {
    /// Names the fold; the package name by default.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// The largest batch that the fold wants; the broker's default otherwise.
    #[must_use]
    pub fn max_batch(mut self, messages: u32) -> Self {
        self.settings.max_batch = messages;
        self
    }

    /// Windows of a fixed size, aligned to the epoch in UTC; each record falls into one.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().tumbling(secs(10)).aggregate(|a| a.count("n")).sink("counts");
    /// let mut host = TestHost::new(fold);
    /// host.push("1", 9_999);
    /// host.push("1", 10_000);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"n":1}"#);
    /// ```
    #[must_use]
    pub fn tumbling(self, size: Duration) -> Windowed<T> {
        self.window(Window::tumbling(size))
    }

    /// Windows of a fixed size that start every `slide`; each record falls into several. The size
    /// is a whole multiple of the slide.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().sliding(secs(60), secs(20)).aggregate(|a| a.count("n"));
    /// let mut host = TestHost::new(move || fold().sink("counts"));
    /// host.push("1", 70_000);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.rows().len(), 3);
    /// ```
    #[must_use]
    pub fn sliding(self, size: Duration, slide: Duration) -> Windowed<T> {
        self.window(Window::sliding(size, slide))
    }

    /// Windows that last while records of a key come with at most `gap` between them.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().session(secs(30)).aggregate(|a| a.count("n")).sink("visits");
    /// let mut host = TestHost::new(fold);
    /// host.push("1", 0);
    /// host.push("1", 30_000);
    /// host.push("1", 60_001);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits()[0].payload, r#"{"n":2}"#);
    /// ```
    #[must_use]
    pub fn session(self, gap: Duration) -> Windowed<T> {
        self.window(Window::session(gap))
    }

    /// Windows of the calendar in UTC; weeks begin on Monday.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().cron(Cron::Day).aggregate(|a| a.count("n")).sink("daily");
    /// let mut host = TestHost::new(fold);
    /// host.push("1", 86_399_999);
    /// host.push("1", 86_400_000);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.emits().len(), 1);
    /// ```
    #[must_use]
    pub fn cron(self, every: Cron) -> Windowed<T> {
        self.window(Ok(Window::Cron(every)))
    }

    fn window(mut self, window: Result<Window, String>) -> Windowed<T> {
        let window = window.unwrap_or_else(|problem| {
            self.settings.problems.push(problem);
            Window::Cron(Cron::Second)
        });
        Windowed::new(self.source, self.key, self.settings, window)
    }

    /// The parts of the chain so far, for the operator that follows.
    pub(crate) fn into_parts(self) -> (SourceFn<T>, Option<KeyFn<T>>, Settings) {
        (self.source, self.key, self.settings)
    }

    pub(crate) fn checked(mut self, verdict: Result<(), String>) -> Self {
        self.settings.problems.extend(verdict.err());
        self
    }

    /// Passes records on without state.
    pub(crate) fn pass(self) -> Emits<T, Passed> {
        Emits::new(Box::new(Passthrough { source: self.source, key: self.key }), self.settings)
    }

    /// Ends a stateless chain: each record becomes a message of `queue`, in the partition that is
    /// named like the source partition.
    #[must_use]
    pub fn sink(self, queue: impl Into<String>) -> Pipeline
    where
        T: Serialize,
    {
        self.pass().sink(queue)
    }

    /// As [`Stream::sink`], into a fixed partition.
    #[must_use]
    pub fn sink_to(self, queue: impl Into<String>, partition: impl Into<String>) -> Pipeline
    where
        T: Serialize,
    {
        self.pass().sink_to(queue, partition)
    }

    /// As [`Stream::sink`], into the partition that a function of the record names.
    #[must_use]
    pub fn sink_by<N: Display>(
        self,
        queue: impl Into<String>,
        partition: impl Fn(&T, &Passed) -> N + 'static,
    ) -> Pipeline
    where
        T: Serialize,
    {
        self.pass().sink_by(queue, partition)
    }

    /// Ends a chain that emits nothing: records are consumed.
    #[must_use]
    pub fn end(self) -> Pipeline {
        self.pass().end()
    }
}
