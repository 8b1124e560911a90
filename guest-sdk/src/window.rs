//! Windows: which ones an instant falls into, and how their state rows are keyed and spelled.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::intake::US;
use crate::time::{FIRST_MS, LAST_MS, Timestamp, duration_ms};

/// 1970-01-01 was a Thursday; weeks begin four days later.
const MONDAY_MS: i64 = 345_600_000;

/// A window of the calendar, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cron {
    /// Every second.
    Second,
    /// Every minute.
    Minute,
    /// Every hour.
    Hour,
    /// Every day.
    Day,
    /// Every week, from Monday 00:00.
    Week,
}

impl Cron {
    const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }

    const fn ms(self) -> i64 {
        match self {
            Self::Second => 1_000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
            Self::Day => 86_400_000,
            Self::Week => 604_800_000,
        }
    }
}

/// A kind of window; lengths in milliseconds, all above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    Tumbling { size: i64 },
    Sliding { size: i64, slide: i64 },
    Session { gap: i64 },
    Cron(Cron),
}

impl Window {
    pub(crate) fn tumbling(size: Duration) -> Result<Self, String> {
        Ok(Self::Tumbling { size: length("tumbling: the size", size)? })
    }

    pub(crate) fn sliding(size: Duration, slide: Duration) -> Result<Self, String> {
        let size = length("sliding: the size", size)?;
        let slide = length("sliding: the slide", slide)?;
        if size % slide != 0 {
            return Err("sliding: the size must be a whole multiple of the slide".into());
        }
        Ok(Self::Sliding { size, slide })
    }

    pub(crate) fn session(gap: Duration) -> Result<Self, String> {
        Ok(Self::Session { gap: length("session: the gap", gap)? })
    }

    /// The first part of this operator's state keys.
    pub(crate) fn tag(self) -> String {
        match self {
            Self::Tumbling { size } => format!("tumb:{}", seconds(size)),
            Self::Sliding { size, slide } => {
                format!("slide:{}:{}", seconds(size), seconds(slide))
            }
            Self::Session { gap } => format!("sess:{}", seconds(gap)),
            Self::Cron(unit) => format!("cron:{}", unit.name()),
        }
    }

    /// Distance between two starts, length, and shift of the starts against the epoch.
    const fn grid(self) -> (i64, i64, i64) {
        match self {
            Self::Tumbling { size } => (size, size, 0),
            Self::Sliding { size, slide } => (slide, size, 0),
            // A session has no grid: its window is the instant itself.
            Self::Session { .. } => (1, 0, 0),
            Self::Cron(Cron::Week) => (Cron::Week.ms(), Cron::Week.ms(), MONDAY_MS),
            Self::Cron(unit) => (unit.ms(), unit.ms(), 0),
        }
    }

    /// Length of a window; 0 for sessions.
    pub(crate) const fn length(self) -> i64 {
        self.grid().1
    }

    /// Starts of the windows of `time`, newest first.
    pub(crate) fn starts(self, time: i64) -> impl Iterator<Item = i64> {
        let (step, length, shift) = self.grid();
        let newest = (time - shift).div_euclid(step) * step + shift;
        (0..(length / step).max(1)).map(move |i| newest - i * step)
    }

    /// Refuses an instant whose windows have no key in the calendar.
    pub(crate) fn check(self, time: i64) -> Result<(), String> {
        // The shift and the length are added later: stay clear of overflow first.
        let in_range = (FIRST_MS..=LAST_MS).contains(&time)
            && self.starts(time).last().is_some_and(|start| start >= FIRST_MS);
        if in_range {
            Ok(())
        } else {
            Err(format!("the time {time} is outside of years 0 to 9999"))
        }
    }
}

fn length(what: &str, duration: Duration) -> Result<i64, String> {
    let ms = duration_ms(duration);
    if ms == 0 || !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!("{what} must be above 0, in whole milliseconds"));
    }
    Ok(ms)
}

/// Seconds in shortest decimal form: `60`, `0.5`.
fn seconds(ms: i64) -> String {
    let (whole, rest) = (ms / 1_000, ms % 1_000);
    if rest == 0 {
        whole.to_string()
    } else {
        format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
    }
}

/// `tag US middle US key`.
pub(crate) fn state_key(tag: &str, middle: &str, key: &str) -> String {
    let mut out = String::with_capacity(tag.len() + middle.len() + key.len() + 2);
    out.push_str(tag);
    out.push(US);
    out.push_str(middle);
    out.push(US);
    out.push_str(key);
    out
}

/// Middle and key of a state key with this tag; None for rows of others.
pub(crate) fn parse_state_key<'k>(tag: &str, key: &'k str) -> Option<(&'k str, &'k str)> {
    let mut parts = key.split(US);
    let parsed = (parts.next()? == tag).then_some((parts.next()?, parts.next()?));
    parsed.filter(|_| parts.next().is_none())
}

/// A stored window or session, leniently read: rows may come from outside workers.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    acc: Option<&'a RawValue>,
    #[serde(borrow)]
    window_start: Option<&'a RawValue>,
    #[serde(borrow)]
    window_end: Option<&'a RawValue>,
    #[serde(borrow)]
    session_start: Option<&'a RawValue>,
    #[serde(borrow)]
    last_event_time: Option<&'a RawValue>,
}

/// Keeps a JSON null apart from an absent member.
fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(d).map(Some)
}

fn integer(text: Option<&RawValue>) -> Option<i64> {
    text.and_then(|t| t.get().parse().ok())
}

impl<'a> Row<'a> {
    pub(crate) fn parse(value: &'a str) -> Self {
        serde_json::from_str(value).unwrap_or_default()
    }

    /// The accumulator: the whole value where the member is missing.
    pub(crate) fn acc(&self, value: &'a str) -> &'a str {
        self.acc.map_or(value, RawValue::get)
    }

    /// Start and end of a window whose key says `window_key`.
    pub(crate) fn bounds(&self, window_key: &str) -> (i64, i64) {
        let start = integer(self.window_start)
            .or_else(|| Timestamp::parse(window_key).ok().map(Timestamp::ms))
            .unwrap_or(0);
        (start, integer(self.window_end).unwrap_or(start))
    }

    /// Start and last event of a session.
    pub(crate) fn session(&self) -> (i64, i64) {
        let start = integer(self.session_start).unwrap_or(0);
        (start, integer(self.last_event_time).unwrap_or(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: i64 = 1_785_837_600_000;

    fn windows(window: Window, time: i64) -> Vec<(i64, i64)> {
        window.starts(time).map(|start| (start, start + window.length())).collect()
    }

    /// operators V2, V3, V5: assignment, below the epoch too.
    #[test]
    fn windows_align_to_the_epoch() {
        let tumbling = Window::Tumbling { size: 10_000 };
        assert_eq!(windows(tumbling, -1), [(-10_000, 0)]);
        assert_eq!(windows(tumbling, 9_999), [(0, 10_000)]);
        assert_eq!(windows(tumbling, 10_000), [(10_000, 20_000)]);
        let sliding = Window::Sliding { size: 60_000, slide: 10_000 };
        let starts: Vec<i64> = sliding.starts(T0 + 37_000).map(|s| (s - T0) / 1_000).collect();
        assert_eq!(starts, [30, 20, 10, 0, -10, -20]);

        let t = T0 + 37_123;
        let start = |unit, t| windows(Window::Cron(unit), t)[0].0;
        assert_eq!(start(Cron::Second, t), T0 + 37_000);
        assert_eq!(windows(Window::Cron(Cron::Minute), t), [(T0, T0 + 60_000)]);
        assert_eq!(windows(Window::Cron(Cron::Hour), t), [(T0, T0 + 3_600_000)]);
        assert_eq!(start(Cron::Day, t), T0 - 36_000_000);
        let week = (1_785_715_200_000, 1_786_320_000_000);
        assert_eq!(windows(Window::Cron(Cron::Week), t), [week]);
        assert_eq!(start(Cron::Week, week.0 - 1), week.0 - 604_800_000);
        assert_eq!(start(Cron::Week, week.0), week.0);
    }

    /// Section 4 of the operators: tags, keys, and rows that are not this operator's.
    #[test]
    fn keys_and_rows() {
        let tag = |window: Result<Window, String>| window.map(Window::tag).expect("it is valid");
        assert_eq!(tag(Window::tumbling(Duration::from_secs(60))), "tumb:60");
        assert_eq!(tag(Window::tumbling(Duration::from_millis(500))), "tumb:0.5");
        let minute = Duration::from_secs(60);
        assert_eq!(tag(Window::sliding(minute, Duration::from_secs(10))), "slide:60:10");
        assert_eq!(tag(Window::session(Duration::from_millis(1_250))), "sess:1.25");
        assert_eq!(Window::Cron(Cron::Week).tag(), "cron:week");
        assert!(Window::sliding(minute, Duration::from_secs(7)).is_err());
        assert!(Window::tumbling(Duration::ZERO).is_err());
        assert!(Window::tumbling(Duration::from_micros(1_500)).is_err());

        let key = state_key("tumb:6", "w", "k");
        assert_eq!(parse_state_key("tumb:6", &key), Some(("w", "k")));
        assert_eq!(parse_state_key("tumb:60", &key), None);
        assert_eq!(parse_state_key("tumb:6", "tumb:6\u{1f}k"), None);
        assert_eq!(parse_state_key("tumb:6", "tumb:6\u{1f}w\u{1f}k\u{1f}x"), None);

        let value = r#"{"acc":null,"windowStart":5,"windowEnd":7.0}"#;
        assert_eq!(Row::parse(value).acc(value), "null");
        assert_eq!(Row::parse(value).bounds(""), (5, 5));
        assert_eq!(Row::parse("17").acc("17"), "17");
        assert_eq!(Row::parse("{}").bounds("1970-01-01T00:00:01.000Z"), (1_000, 1_000));
        assert_eq!(Row::parse("{}").bounds("?"), (0, 0));
    }
}
