//! The example feed: a month of departures, and the windows that it must give.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use anyhow::Context;
use serde::Deserialize;
use serde_json::value::RawValue;

const FEED: &[u8] = include_bytes!("../../examples/flights/data/flights-2013-01.ndjson.gz");
const WINDOWS: &str = include_str!("../../examples/flights/data/flights-2013-01.hourly.csv");

/// Queue that the feed goes to.
pub(super) const QUEUE: &str = "flights";
/// Queue that windows come from.
pub(super) const SINK: &str = "flights.hourly";

/// One departure.
#[derive(Debug)]
pub(super) struct Departure {
    /// Airport: the partition.
    pub(super) origin: String,
    /// Transaction id.
    pub(super) id: String,
    /// The line as it stands in the feed.
    pub(super) payload: Box<RawValue>,
}

/// The whole feed, in its order.
pub(super) fn departures() -> anyhow::Result<Vec<Departure>> {
    #[derive(Deserialize)]
    struct Head {
        id: String,
        origin: String,
    }
    let lines = BufReader::new(flate2::read::GzDecoder::new(FEED)).lines();
    lines
        .map(|line| {
            let line = line?;
            let head: Head = serde_json::from_str(&line).context("a line of the feed")?;
            let payload = RawValue::from_string(line)?;
            Ok(Departure { origin: head.origin, id: head.id, payload })
        })
        .collect()
}

/// What a window is known by: airport and start.
pub(super) type WindowKey = (String, String);

/// Count, sum, min and max of delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delays {
    pub(super) count: i64,
    pub(super) sum: i64,
    pub(super) min: i64,
    pub(super) max: i64,
}

/// A message of the sink.
#[derive(Debug, Deserialize)]
pub(super) struct Window {
    origin: String,
    window_start: String,
    count: i64,
    sum_dep_delay: i64,
    min_dep_delay: i64,
    max_dep_delay: i64,
}

impl Window {
    /// Key and figures.
    pub(super) fn split(self) -> (WindowKey, Delays) {
        let delays = Delays {
            count: self.count,
            sum: self.sum_dep_delay,
            min: self.min_dep_delay,
            max: self.max_dep_delay,
        };
        ((self.origin, self.window_start), delays)
    }
}

/// The windows that the feed must give.
pub(super) fn expected() -> anyhow::Result<BTreeMap<WindowKey, Delays>> {
    let rows = WINDOWS.lines().skip(1).filter(|line| !line.is_empty());
    rows.map(|line| {
        let cells: Vec<&str> = line.split(',').collect();
        let [origin, start, count, sum, min, max] = cells[..] else {
            anyhow::bail!("a row of the expected windows has {} columns", cells.len());
        };
        let delays = Delays {
            count: count.parse()?,
            sum: sum.parse()?,
            min: min.parse()?,
            max: max.parse()?,
        };
        Ok(((origin.to_owned(), start.to_owned()), delays))
    })
    .collect()
}
