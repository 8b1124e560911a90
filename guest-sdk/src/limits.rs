//! Rate limits for gates: token bucket and sliding window.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// What a gate says to a record. A `bool` says it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The record passes.
    Allow,
    /// Its message and everything after it stays in the queue.
    Deny {
        /// When it is worth trying again.
        retry_after_ms: Option<u32>,
    },
}

impl From<bool> for Verdict {
    fn from(allow: bool) -> Self {
        if allow { Self::Allow } else { Self::Deny { retry_after_ms: None } }
    }
}

/// A bucket of tokens that refills steadily; a record takes its cost out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenBucket {
    /// How many tokens there are at most.
    pub capacity: f64,
    /// How many come back in a second.
    pub refill_per_sec: f64,
    /// Whether a record that costs nothing passes.
    pub allow_zero_cost: bool,
}

/// The state of a [`TokenBucket`], as state rows spell it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BucketState {
    #[serde(deserialize_with = "number")]
    tokens: Option<f64>,
    #[serde(deserialize_with = "number")]
    last_refill_at: Option<f64>,
    #[serde(deserialize_with = "number_or_zero")]
    allowed_total: f64,
    #[serde(deserialize_with = "number_or_zero")]
    consumed_total: f64,
}

/// Rows may come from outside workers: what is no number counts as absent.
fn number<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    Value::deserialize(d).map(|value| value.as_f64())
}

fn number_or_zero<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    number(d).map(|n| n.unwrap_or(0.0))
}

/// A cost that is no cost counts as one.
fn sane_cost(cost: f64) -> f64 {
    if cost.is_finite() && cost >= 0.0 { cost } else { 1.0 }
}

fn positive(what: &str, v: f64) -> Result<(), String> {
    if v.is_finite() && v > 0.0 { Ok(()) } else { Err(format!("{what} must be above 0")) }
}

/// Milliseconds as a hint for the next try, at least one.
fn retry_after(ms: f64) -> Verdict {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float casts saturate, and a hint may"
    )]
    let ms = ms.ceil().max(1.0) as u32;
    Verdict::Deny { retry_after_ms: Some(ms) }
}

impl TokenBucket {
    /// A bucket of this size and refill rate in tokens a second.
    #[must_use]
    pub const fn new(capacity: f64, refill_per_sec: f64) -> Self {
        Self { capacity, refill_per_sec, allow_zero_cost: true }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        positive("token bucket: the capacity", self.capacity)?;
        positive("token bucket: the refill", self.refill_per_sec)
    }

    /// Refills the bucket up to `now` and takes `cost` out, if there is so much.
    pub fn admit(&self, state: &mut BucketState, cost: f64, now: i64) -> Verdict {
        let now = now as f64;
        let before = state.last_refill_at.unwrap_or(now);
        let refill = ((now - before) / 1_000.0).max(0.0) * self.refill_per_sec;
        let tokens = (state.tokens.unwrap_or(self.capacity) + refill).min(self.capacity);
        (state.tokens, state.last_refill_at) = (Some(tokens), Some(now));
        let cost = sane_cost(cost);
        if cost == 0.0 {
            return self.allow_zero_cost.into();
        }
        if tokens < cost {
            let missing = (cost - tokens) / self.refill_per_sec * 1_000.0;
            // What is larger than the bucket never passes: no time is worth a try.
            return if cost > self.capacity { false.into() } else { retry_after(missing) };
        }
        state.tokens = Some(tokens - cost);
        state.allowed_total += 1.0;
        state.consumed_total += cost;
        Verdict::Allow
    }
}

/// At most `limit` in any `window_sec` seconds, estimated from this window and the one before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlidingLimit {
    /// How much passes in a window.
    pub limit: f64,
    /// Length of the window in seconds.
    pub window_sec: f64,
}

/// The state of a [`SlidingLimit`], as state rows spell it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitState {
    #[serde(deserialize_with = "number")]
    window: Option<f64>,
    #[serde(deserialize_with = "number_or_zero")]
    current_count: f64,
    #[serde(deserialize_with = "number_or_zero")]
    previous_count: f64,
}

impl SlidingLimit {
    /// A limit for each window of this many seconds.
    #[must_use]
    pub const fn new(limit: f64, window_sec: f64) -> Self {
        Self { limit, window_sec }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        positive("sliding limit: the limit", self.limit)?;
        positive("sliding limit: the window", self.window_sec)
    }

    /// Counts `cost` at `now`, if the estimate leaves room for it.
    pub fn admit(&self, state: &mut LimitState, cost: f64, now: i64) -> Verdict {
        let window_ms = self.window_sec * 1_000.0;
        let now = now as f64;
        let window = (now / window_ms).floor();
        let elapsed = now.rem_euclid(window_ms) / window_ms;
        if state.window != Some(window) {
            let follows = state.window == Some(window - 1.0);
            state.previous_count = if follows { state.current_count } else { 0.0 };
            state.current_count = 0.0;
            state.window = Some(window);
        }
        let cost = sane_cost(cost);
        let estimate = state.previous_count * (1.0 - elapsed) + state.current_count;
        if estimate + cost <= self.limit {
            state.current_count += cost;
            return Verdict::Allow;
        }
        if cost > self.limit {
            return false.into();
        }
        // The share of the window before falls steadily; what this one counted stays to its end.
        let room = self.limit - cost - state.current_count;
        let wanted = if room < 0.0 { 1.0 } else { 1.0 - room / state.previous_count };
        retry_after((wanted - elapsed) * window_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(window: f64, current: f64, previous: f64) -> LimitState {
        LimitState { window: Some(window), current_count: current, previous_count: previous }
    }

    /// operators V11: the window before counts by its share.
    #[test]
    fn sliding_limit_carries_over() {
        let gate = SlidingLimit::new(3.0, 10.0);
        let mut state = limit(1.0, 2.0, 0.0);
        assert_eq!(gate.admit(&mut state, 1.0, 25_000), Verdict::Allow);
        assert_eq!(gate.admit(&mut state, 1.0, 25_000), Verdict::Allow);
        let denied = gate.admit(&mut state, 1.0, 25_000);
        assert_eq!(denied, Verdict::Deny { retry_after_ms: Some(5_000) });
        assert_eq!(state, limit(2.0, 2.0, 2.0));
        assert_eq!(gate.admit(&mut state, 1.0, 45_000), Verdict::Allow);
        assert_eq!(state, limit(4.0, 1.0, 0.0));
    }

    /// Section 12 of the operators: odd costs, odd states, and limits that are none.
    #[test]
    fn odd_costs_and_states() {
        let bucket = TokenBucket::new(2.0, 1.0);
        let mut state: BucketState =
            serde_json::from_str(r#"{"tokens":"x","other":1}"#).expect("states are read leniently");
        assert_eq!(bucket.admit(&mut state, 0.0, 5), Verdict::Allow);
        assert_eq!((state.tokens, state.last_refill_at), (Some(2.0), Some(5.0)));
        assert_eq!(bucket.admit(&mut state, f64::NAN, 5), Verdict::Allow);
        assert_eq!(state.consumed_total, 1.0);
        // A clock that goes back refills nothing.
        assert_eq!(bucket.admit(&mut state, -3.0, 0), Verdict::Allow);
        let denied = bucket.admit(&mut state, 1.0, 0);
        assert_eq!(denied, Verdict::Deny { retry_after_ms: Some(1_000) });
        assert_eq!(bucket.admit(&mut state, 3.0, 0), Verdict::Deny { retry_after_ms: None });
        let strict = TokenBucket { allow_zero_cost: false, ..bucket };
        assert_eq!(strict.admit(&mut state, 0.0, 0), Verdict::Deny { retry_after_ms: None });
        assert!(TokenBucket::new(0.0, 1.0).check().is_err());
        assert!(TokenBucket::new(1.0, f64::INFINITY).check().is_err());
        assert!(SlidingLimit::new(1.0, f64::NAN).check().is_err());
    }
}
