//! The flights fold in plain Rust, as a worker outside the broker runs it.
//!
//! State rows, results and watermark are those of the example module (operators, sections 4, 7
//! and 9), so hosted and outside folds write the same.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Context;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TAG: &str = "tumb:3600";
const WINDOW_MS: i64 = 3_600_000;
/// Key of the watermark row.
const WATERMARK: &str = "__wm__";

/// The part of a departure that the fold looks at.
#[derive(Deserialize)]
pub(super) struct Flight<'a> {
    origin: &'a str,
    departed_at: Option<Timestamp>,
    dep_delay: Option<i64>,
}

impl<'a> Flight<'a> {
    /// Reads a payload.
    pub(super) fn read(payload: &'a str) -> anyhow::Result<Self> {
        serde_json::from_str(payload).context("a flight")
    }

    /// Looks into a payload that is a JSON value, as the functions of an SDK's user do.
    pub(super) fn of(payload: &'a Value) -> anyhow::Result<Self> {
        let departed_at = payload["departed_at"].as_str().map(str::parse).transpose();
        Ok(Self {
            origin: payload["origin"].as_str().context("a flight has an origin")?,
            departed_at: departed_at.context("departed_at")?,
            dep_delay: payload["dep_delay"].as_i64(),
        })
    }
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
    /// Rows to write: key, value and, for a window, its end. The watermark row is the last.
    pub(super) upserts: Vec<(String, Value, Option<i64>)>,
    /// Rows to delete.
    pub(super) deletes: Vec<String>,
    /// Payloads for the sink.
    pub(super) emits: Vec<Value>,
    /// Event time below which no more is expected, Unix ms.
    pub(super) watermark: Option<i64>,
}

impl Shard {
    /// Takes in one row as it is stored.
    pub(super) fn load(&mut self, key: &str, value: &Value) -> anyhow::Result<()> {
        if key == WATERMARK {
            let row = WatermarkRow::deserialize(value)?;
            self.watermark = Some(row.event_time_ms);
            return Ok(());
        }
        let mut parts = key.split('\u{1f}');
        let (Some(TAG), Some(_), Some(origin)) = (parts.next(), parts.next(), parts.next()) else {
            return Ok(());
        };
        let row = Row::deserialize(value).context("a window row")?;
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
        flights: impl Iterator<Item = anyhow::Result<Flight<'p>>>,
    ) -> anyhow::Result<Folded> {
        let before = self.watermark;
        let mut key = String::new();
        for flight in flights {
            let flight = flight?;
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
                folded.upserts.push((key.clone(), serde_json::to_value(&row)?, Some(end)));
                (window.stored, window.touched) = (true, false);
            }
        }
        for key in closed {
            self.windows.remove(&key);
        }
        if let Some(event_time_ms) = self.watermark {
            let value = serde_json::to_value(WatermarkRow { event_time_ms })?;
            folded.upserts.push((WATERMARK.to_owned(), value, None));
        }
        Ok(folded)
    }
}

fn time(ms: i64) -> anyhow::Result<Timestamp> {
    Timestamp::from_millisecond(ms).context("an event time out of range")
}

fn result(window: &Window) -> anyhow::Result<Value> {
    Ok(json!({
        "origin": window.origin,
        "window_start": time(window.start)?.to_string(),
        "window_end": time(window.start + WINDOW_MS)?.to_string(),
        "count": window.totals.count,
        "sum_dep_delay": window.totals.sum_dep_delay,
        "min_dep_delay": window.totals.min_dep_delay,
        "max_dep_delay": window.totals.max_dep_delay,
    }))
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
            let mut rows: BTreeMap<String, Value> = BTreeMap::new();
            for batch in payloads.chunks(100) {
                let mut shard = Shard::default();
                for (key, value) in &rows {
                    shard.load(key, value).expect("a row");
                }
                let values: Vec<Value> =
                    batch.iter().map(|p| serde_json::from_str(p).expect("JSON")).collect();
                let folded = shard.fold(values.iter().map(Flight::of)).expect("a fold");
                for (key, value, _) in folded.upserts {
                    rows.insert(key, value);
                }
                for key in folded.deletes {
                    assert!(rows.remove(&key).is_some(), "{key:?} is stored");
                }
                for emit in folded.emits {
                    let window: feed::Window = serde_json::from_value(emit).expect("a window");
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
