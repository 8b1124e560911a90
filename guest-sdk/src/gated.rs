//! The part of a chain that puts a gate into it.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::emits::Emits;
use crate::gate::{At, Gate, Stateful};
use crate::limits::{BucketState, LimitState, SlidingLimit, TokenBucket, Verdict};
use crate::origin::Passed;
use crate::stream::Stream;

impl<T: 'static, K> Stream<T, K> {
    /// Lets messages pass in order until one is denied; that one and what follows stay in the
    /// queue and come again. The state belongs to the key and is a state row; [`At::now`] is the
    /// broker's clock. A key that is empty or starts with `__` makes its message a dead letter.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().gate(|used: &mut i64, cost, _at| {
    ///     *used += cost;
    ///     *used <= 10
    /// }).sink("passed");
    /// let mut host = TestHost::new(fold);
    /// for cost in ["4", "5", "6"] {
    ///     host.push(cost, 1);
    /// }
    /// host.run_all(100).unwrap();
    /// assert_eq!((host.emits().len(), host.backlog()), (2, 1));
    /// assert_eq!(host.rows()["p1"].value, "9");
    /// ```
    #[must_use]
    pub fn gate<S, V>(self, admit: impl Fn(&mut S, &T, &At<'_>) -> V + 'static) -> Emits<T, Passed>
    where
        S: Clone + Default + Serialize + DeserializeOwned + 'static,
        V: Into<Verdict>,
    {
        let (source, key, settings) = self.into_parts();
        let admit = move |state: &mut S, record: &T, at: &At<'_>| admit(state, record, at).into();
        let gate = Gate::new(source, key, admit);
        Emits::new(Box::new(Stateful { gate, state: PhantomData::<fn() -> S> }), settings)
    }

    /// A gate by [`TokenBucket`]: one bucket for each key, `cost` tokens for each record.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let fold = || stream::<i64>().token_bucket(TokenBucket::new(2.0, 1.0), |_| 1.0).sink("out");
    /// let mut host = TestHost::new(fold);
    /// for i in ["1", "2", "3"] {
    ///     host.push(i, 1_000);
    /// }
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.backlog(), 1);
    /// host.set_clock(2_000);
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.backlog(), 0);
    /// ```
    #[must_use]
    pub fn token_bucket(
        self,
        bucket: TokenBucket,
        cost: impl Fn(&T) -> f64 + 'static,
    ) -> Emits<T, Passed> {
        self.checked(bucket.check()).gate(move |state: &mut BucketState, record, at| {
            bucket.admit(state, cost(record), at.now)
        })
    }

    /// A gate by [`SlidingLimit`]: one limit for each key, `cost` counted for each record.
    ///
    /// ```
    /// use foldmq_guest::{prelude::*, testing::TestHost};
    /// let limit = SlidingLimit::new(2.0, 10.0);
    /// let mut host = TestHost::new(move || stream::<i64>().sliding_limit(limit, |_| 1.0).end());
    /// for i in ["1", "2", "3"] {
    ///     host.push(i, 1_000);
    /// }
    /// host.run_all(100).unwrap();
    /// assert_eq!(host.backlog(), 1);
    /// ```
    #[must_use]
    pub fn sliding_limit(
        self,
        limit: SlidingLimit,
        cost: impl Fn(&T) -> f64 + 'static,
    ) -> Emits<T, Passed> {
        self.checked(limit.check()).gate(move |state: &mut LimitState, record, at| {
            limit.admit(state, cost(record), at.now)
        })
    }
}
