//! The whole feed through the fold, natively, against windows that were computed apart from it.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use foldmq_guest::testing::TestHost;
use serde_json::{Value, json};

const FEED: &[u8] = include_bytes!("../data/flights-2013-01.ndjson.gz");
const WINDOWS: &str = include_str!("../data/flights-2013-01.hourly.csv");

/// The feed as lines by origin, in order.
fn feed() -> BTreeMap<String, Vec<String>> {
    let mut text = String::new();
    GzDecoder::new(FEED).read_to_string(&mut text).expect("the feed is gzipped text");
    let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let flight: Value = serde_json::from_str(line).expect("a line is JSON");
        let origin = flight["origin"].as_str().expect("a flight has an origin");
        lanes.entry(origin.to_owned()).or_default().push(line.to_owned());
    }
    lanes
}

/// A sink message without its window's end, as a line of the CSV.
fn row(payload: &str) -> String {
    let window: Value = serde_json::from_str(payload).expect("a sink message is JSON");
    assert_eq!(window.as_object().map(serde_json::Map::len), Some(7), "{payload}");
    let columns =
        ["origin", "window_start", "count", "sum_dep_delay", "min_dep_delay", "max_dep_delay"];
    let text = |name: &str| match &window[name] {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    columns.map(text).join(",")
}

/// Every window of the month comes once and exact, whatever the sizes of the batches.
#[test]
fn the_month_gives_its_1763_windows() {
    for sizes in [[1_000, 1_000, 1_000], [1, 37, 500], [9, 2, 4_000]] {
        let mut rows = Vec::new();
        let mut cancelled = 0;
        for (origin, lines) in feed() {
            let mut host = TestHost::new(flights::hourly);
            host.partition(&origin, "0193f0c5-0000-7000-8000-000000000001");
            for (n, line) in (0..).zip(&lines) {
                host.push(line.as_str(), 1_790_000_000_000 + n);
            }
            for size in sizes.iter().cycle() {
                if host.backlog() == 0 {
                    break;
                }
                host.run_batch(*size).expect("a batch is folded");
            }
            let before = host.emits().len();
            host.tick(1_790_000_000_000 + 60_000).expect("the last window closes");
            assert_eq!(host.emits().len(), before + 1, "silence closes the last window");
            assert_eq!(host.rows().keys().collect::<Vec<_>>(), ["__wm__"]);
            assert!(host.emits().iter().all(|e| e.partition == origin));
            assert_eq!((host.dead_letters().len(), host.tally("late")), (0, 0));
            cancelled += host.tally("cancelled");
            rows.extend(host.emits().iter().map(|emit| row(&emit.payload)));
        }
        let mut want: Vec<&str> = WINDOWS.lines().skip(1).collect();
        want.sort_unstable();
        rows.sort_unstable();
        assert_eq!(rows.len(), 1_763);
        assert_eq!(rows, want);
        assert_eq!(cancelled, 521);
    }
}

/// A late flight is counted, a broken one becomes a dead letter, and their neighbours are folded.
#[test]
fn odd_messages_do_no_harm() {
    let mut host = TestHost::new(flights::hourly);
    let flight = |at: &str| json!({"origin": "JFK", "departed_at": at, "dep_delay": 1}).to_string();
    host.push(flight("2013-01-01T11:00:00Z"), 1);
    host.run_all(100).expect("a batch is folded");
    host.push(flight("2013-01-01T10:59:59Z"), 2);
    host.push(r#"{"origin": "JFK", "departed_at": "yesterday"}"#, 3);
    host.push(flight("2013-01-01T12:00:00Z"), 4);
    host.run_all(100).expect("a batch is folded");
    assert_eq!(host.tally("late"), 1);
    assert!(host.dead_letters()[0].reason.contains("ISO-8601"));
    let window = r#""window_start":"2013-01-01T11:00:00Z","window_end":"2013-01-01T12:00:00Z""#;
    let numbers = r#""count":1,"sum_dep_delay":1,"min_dep_delay":1,"max_dep_delay":1"#;
    let want = format!(r#"{{"origin":"JFK",{window},{numbers}}}"#);
    assert_eq!(host.emits()[0].payload, want);
}
