//! The flights fold in plain Rust, as a worker outside the broker runs it.
//!
//! State rows, results and watermark are those of the example module (operators, sections 4, 7
//! and 9), so hosted and outside folds write the same.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

const TAG: &str = "tumb:3600";
const WINDOW_MS: i64 = 3_600_000;
/// Key of the watermark row.
const WATERMARK: &str = "__wm__";

#[derive(Deserialize)]
struct Flight<'a> {
    origin: &'a str,
    departed_at: Option<Timestamp>,
    dep_delay: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Totals {
    count: i64,
    sum_dep_delay: i64,
    min_dep_delay: Option<i64>,
    max_dep_delay: Option<i64>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    acc: Totals,
    window_start: i64,
    window_end: i64,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct WatermarkRow {
    event_time_ms: i64,
}

#[derive(Debug)]
struct Window {
    origin: String,
    start: i64,
    totals: Totals,
    stored: bool,
    touched: bool,
}

/// What is known of one partition.
#[derive(Debug, Default)]
pub(super) struct Shard {
    windows: BTreeMap<String, Window>,
    watermark: Option<i64>,
}

/// What a batch gives.
#[derive(Clone, Debug, Default)]
pub(super) struct Folded {
    /// Rows to write: key, JSON text and, for a window, its end. The watermark row is the last.
    pub(super) upserts: Vec<(String, String, Option<i64>)>,
    /// Rows to delete.
    pub(super) deletes: Vec<String>,
    /// Payloads for the sink.
    pub(super) emits: Vec<String>,
    /// Event time below which no more is expected, Unix ms.
    pub(super) watermark: Option<i64>,
}

impl Shard {
    /// Takes in one row as it is stored.
    pub(super) fn load(&mut self, key: &str, value: &str) -> anyhow::Result<()> {
        if key == WATERMARK {
            let row: WatermarkRow = serde_json::from_str(value)?;
            self.watermark = Some(row.event_time_ms);
            return Ok(());
        }
        let mut parts = key.split('\u{1f}');
        let (Some(TAG), Some(_), Some(origin)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(());
        };
        let row: Row = serde_json::from_str(value).context("a window row")?;
        let window = Window {
            origin: origin.to_owned(),
            start: row.window_start,
            totals: row.acc,
            stored: true,
            touched: false,
        };
        self.windows.insert(key.to_owned(), window);
        Ok(())
    }

    /// Folds a batch and closes what its watermark passes.
    pub(super) fn fold<'p>(
        &mut self,
        payloads: impl Iterator<Item = &'p str>,
    ) -> anyhow::Result<Folded> {
        let before = self.watermark;
        let mut key = String::new();
        for payload in payloads {
            let flight: Flight<'_> = serde_json::from_str(payload).context("a flight")?;
            let Some(at) = flight.departed_at.map(Timestamp::as_millisecond) else { continue };
            self.watermark = self.watermark.max(Some(at));
            if before.is_some_and(|before| at < before) {
                continue;
            }
            let start = at.div_euclid(WINDOW_MS) * WINDOW_MS;
            key.clear();
            write!(key, "{TAG}\u{1f}{:.3}\u{1f}{}", time(start)?, flight.origin)?;
            if !self.windows.contains_key(&key) {
                let window = Window {
                    origin: flight.origin.to_owned(),
                    start,
                    totals: Totals::default(),
                    stored: false,
                    touched: false,
                };
                self.windows.insert(key.clone(), window);
            }
            let window = self.windows.get_mut(&key).context("inserted above")?;
            window.touched = true;
            let totals = &mut window.totals;
            totals.count += 1;
            if let Some(delay) = flight.dep_delay {
                totals.sum_dep_delay += delay;
                totals.min_dep_delay = Some(totals.min_dep_delay.map_or(delay, |m| m.min(delay)));
                totals.max_dep_delay = totals.max_dep_delay.max(Some(delay));
            }
        }
        self.close()
    }

    fn close(&mut self) -> anyhow::Result<Folded> {
        let mut folded = Folded { watermark: self.watermark, ..Folded::default() };
        let mut closed = Vec::new();
        for (key, window) in &mut self.windows {
            let end = window.start + WINDOW_MS;
            if self.watermark.is_some_and(|watermark| end <= watermark) {
                folded.emits.push(result(window)?);
                if window.stored {
                    folded.deletes.push(key.clone());
                }
                closed.push(key.clone());
            } else if window.touched {
                let row = Row { acc: window.totals, window_start: window.start, window_end: end };
                folded.upserts.push((key.clone(), serde_json::to_string(&row)?, Some(end)));
                (window.stored, window.touched) = (true, false);
            }
        }
        for key in closed {
            self.windows.remove(&key);
        }
        if let Some(event_time_ms) = self.watermark {
            let value = serde_json::to_string(&WatermarkRow { event_time_ms })?;
            folded.upserts.push((WATERMARK.to_owned(), value, None));
        }
        Ok(folded)
    }
}

fn time(ms: i64) -> anyhow::Result<Timestamp> {
    Timestamp::from_millisecond(ms).context("an event time out of range")
}

fn result(window: &Window) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Shown<'a> {
        origin: &'a str,
        window_start: String,
        window_end: String,
        count: i64,
        sum_dep_delay: i64,
        min_dep_delay: Option<i64>,
        max_dep_delay: Option<i64>,
    }
    Ok(serde_json::to_string(&Shown {
        origin: &window.origin,
        window_start: time(window.start)?.to_string(),
        window_end: time(window.start + WINDOW_MS)?.to_string(),
        count: window.totals.count,
        sum_dep_delay: window.totals.sum_dep_delay,
        min_dep_delay: window.totals.min_dep_delay,
        max_dep_delay: window.totals.max_dep_delay,
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::feed;

    /// The native fold gives what the module must give, also when it begins anew at each batch.
    #[test]
    fn the_feed_gives_its_windows() {
        let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for departure in feed::departures().expect("the feed") {
            lanes.entry(departure.origin).or_default().push(departure.payload.get().to_owned());
        }
        let mut seen = BTreeMap::new();
        for payloads in lanes.values() {
            let mut rows: BTreeMap<String, String> = BTreeMap::new();
            for batch in payloads.chunks(100) {
                let mut shard = Shard::default();
                for (key, value) in &rows {
                    shard.load(key, value).expect("a row");
                }
                let folded = shard.fold(batch.iter().map(String::as_str)).expect("a fold");
                for (key, value, _) in folded.upserts {
                    rows.insert(key, value);
                }
                for key in folded.deletes {
                    assert!(rows.remove(&key).is_some(), "{key:?} is stored");
                }
                for emit in folded.emits {
                    let window: feed::Window = serde_json::from_str(&emit).expect("a window");
                    let (key, delays) = window.split();
                    assert!(seen.insert(key, delays).is_none(), "a window closes once");
                }
            }
        }
        // The last hours of the three airports are still open.
        let mut expected = feed::expected().expect("the windows");
        expected.retain(|key, _| seen.contains_key(key));
        assert_eq!(seen, expected);
        assert!(seen.len() > 1_750, "{}", seen.len());
    }
}
