//! Windows of processing time.

use foldmq_guest::prelude::*;
use foldmq_guest::testing::TestHost;
use foldmq_guest::{Aggregate, Timers};

use crate::{Event, T0, batch, ops, payloads, with_bounds};

fn sum(a: Aggregate<Event>) -> Aggregate<Event> {
    a.sum("sum", |e| e.v)
}

fn key(e: &Event) -> String {
    e.k.clone().unwrap_or_default()
}

/// operators V1: tumbling 60 with every aggregate, and the flush at the window's end.
#[test]
fn tumbling_with_all_aggregates() {
    let mut host = TestHost::new(|| {
        with_bounds(stream::<Event>().tumbling(secs(60)).aggregate(|a| {
            a.count("count")
                .sum("sum", |e| e.v)
                .min("min", |e| e.v)
                .max("max", |e| e.v)
                .avg("avg", |e| e.v)
        }))
    });
    assert_eq!(host.manifest().timers, Timers::Clock);
    let messages = [
        (r#"{"v":10}"#, T0 + 5_000),
        (r#"{"v":30}"#, T0 + 30_000),
        (r#"{"v":20}"#, T0 + 55_000),
        (r#"{"v":99}"#, T0 + 65_000),
    ];
    let cycle = batch(&mut host, &messages);
    let acc = |count, sum, min, max, avg| {
        format!(r#"{{"count":{count},"sum":{sum},"min":{min},"max":{max},"avg":{avg},"#,)
            + &format!(r#""__avg_sum":{sum},"__avg_count":{count}}}"#)
    };
    let first = acc(3, 60, 10, 30, 20);
    assert_eq!(payloads(&cycle), [format!(r#"["p1",1785837600000,1785837660000,{first}]"#)]);
    let acc = acc(1, 99, 99, 99, 99);
    let bounds = r#""windowStart":1785837660000,"windowEnd":1785837720000"#;
    let row = format!(r#"tumb:60|2026-08-04T10:01:00.000Z|p1 {{"acc":{acc},{bounds}}}"#);
    assert_eq!(ops(&cycle), [row]);

    assert_eq!(host.tick(T0 + 119_999).expect("nothing is due").ops, []);
    let flush = host.tick(T0 + 120_000).expect("the window closes");
    assert_eq!(payloads(&flush), [format!(r#"["p1",1785837660000,1785837720000,{acc}]"#)]);
    assert_eq!(ops(&flush), ["delete tumb:60|2026-08-04T10:01:00.000Z|p1"]);
}

/// operators V2: order of keys, grace, and windows that close without traffic of their own.
#[test]
fn tumbling_with_grace() {
    let fold = || stream::<Event>().key_by(key).tumbling(secs(10)).grace(secs(5)).aggregate(sum);
    let mut host = TestHost::new(move || with_bounds(fold()));
    let messages = [
        (r#"{"k":"b","v":1}"#, 1_000),
        (r#"{"k":"a","v":2}"#, 9_999),
        (r#"{"k":"a","v":4}"#, 10_000),
    ];
    let cycle = batch(&mut host, &messages);
    assert_eq!(cycle.emits, []);
    let row = |start: i64, key: &str, sum: i64| {
        let (end, iso) = (start + 10_000, Timestamp(start).iso());
        let bounds = format!(r#""windowStart":{start},"windowEnd":{end}"#);
        format!(r#"tumb:10|{iso}|{key} {{"acc":{{"sum":{sum}}},{bounds}}}"#)
    };
    assert_eq!(ops(&cycle), [row(0, "a", 2), row(0, "b", 1), row(10_000, "a", 4)]);

    let cycle = batch(&mut host, &[(r#"{"k":"c","v":8}"#, 15_000)]);
    assert_eq!(payloads(&cycle), [r#"["a",0,10000,{"sum":2}]"#, r#"["b",0,10000,{"sum":1}]"#]);
    let deletes = ["a", "b"].map(|k| format!("delete tumb:10|1970-01-01T00:00:00.000Z|{k}"));
    assert_eq!(ops(&cycle), [&deletes[..], &[row(10_000, "c", 8)]].concat());
}

/// operators V3: sliding 60/10.
#[test]
fn sliding() {
    let fold = || stream::<Event>().sliding(secs(60), secs(10)).aggregate(sum);
    let mut host = TestHost::new(move || with_bounds(fold()));
    let key = |n: i64| format!("slide:60:10|{}|p1", Timestamp(T0 + n * 1_000).iso());
    let row = |n: i64, sum: i64| {
        let (start, end) = (T0 + n * 1_000, T0 + n * 1_000 + 60_000);
        format!(r#"{} {{"acc":{{"sum":{sum}}},"windowStart":{start},"windowEnd":{end}}}"#, key(n))
    };
    let cycle = batch(&mut host, &[(r#"{"v":5}"#, T0 + 37_000)]);
    assert_eq!(ops(&cycle), [-20, -10, 0, 10, 20, 30].map(|n| row(n, 5)));

    let cycle = batch(&mut host, &[(r#"{"v":7}"#, T0 + 72_000)]);
    let closed = [-20, -10, 0, 10];
    let emit =
        |n: i64| format!(r#"["p1",{},{},{{"sum":5}}]"#, T0 + n * 1_000, T0 + n * 1_000 + 60_000);
    assert_eq!(payloads(&cycle), closed.map(emit));
    let mut want: Vec<String> = closed.iter().map(|n| format!("delete {}", key(*n))).collect();
    want.extend([(20, 12), (30, 12), (40, 7), (50, 7), (60, 7), (70, 7)].map(|(n, s)| row(n, s)));
    assert_eq!(ops(&cycle), want);
}

/// operators V4: sessions end by a gap in the batch or by the clock; the gap itself extends.
#[test]
fn session() {
    let fold = || stream::<Event>().key_by(key).session(secs(30)).aggregate(sum);
    let mut host = TestHost::new(move || with_bounds(fold()));
    let messages = [
        (r#"{"k":"u1","v":1}"#, T0),
        (r#"{"k":"u2","v":2}"#, T0 + 5_000),
        (r#"{"k":"u1","v":3}"#, T0 + 20_000),
        (r#"{"k":"u1","v":4}"#, T0 + 60_000),
    ];
    let cycle = batch(&mut host, &messages);
    let gap = r#"["u1",1785837600000,1785837650000,{"sum":4}]"#;
    let sweep = r#"["u2",1785837605000,1785837635000,{"sum":2}]"#;
    assert_eq!(payloads(&cycle), [gap, sweep]);
    let row = |sum: i64, last: i64| {
        let bounds = format!(r#""sessionStart":1785837660000,"lastEventTime":{last}"#);
        format!(r#"sess:30|open|u1 {{"acc":{{"sum":{sum}}},{bounds}}}"#)
    };
    assert_eq!(ops(&cycle), [row(4, T0 + 60_000)]);

    let cycle = batch(&mut host, &[(r#"{"k":"u1","v":5}"#, T0 + 90_000)]);
    assert_eq!((payloads(&cycle).len(), ops(&cycle)), (0, vec![row(9, T0 + 90_000)]));
    assert_eq!(host.tick(T0 + 119_999).expect("nothing is due").emits, []);
    let flush = host.tick(T0 + 120_000).expect("the session ends");
    assert_eq!(payloads(&flush), [r#"["u1",1785837660000,1785837720000,{"sum":9}]"#]);
    assert_eq!(ops(&flush), ["delete sess:30|open|u1"]);

    let fold = || stream::<Event>().key_by(key).session(secs(30)).event_time(|e| e.ts);
    let mut host = TestHost::new(move || with_bounds(fold().aggregate(sum)));
    let cycle = batch(
        &mut host,
        &[(r#"{"k":"u1","v":1,"ts":20000}"#, 1), (r#"{"k":"u1","v":2,"ts":5000}"#, 2)],
    );
    let row = r#"sess:30|open|u1 {"acc":{"sum":3},"sessionStart":20000,"lastEventTime":20000}"#;
    assert_eq!(ops(&cycle), [row, r#"__wm__ {"eventTimeMs":20000}"#]);
}

/// operators V4b: a session that restarts and closes in one cycle takes its stored row with it.
#[test]
fn session_restarts_and_closes() {
    let fold = || stream::<Event>().key_by(key).session(secs(30)).aggregate(sum);
    let mut host = TestHost::new(move || with_bounds(fold()));
    host.store(
        "sess:30\u{1f}open\u{1f}u1",
        r#"{"acc":{"sum":9},"sessionStart":0,"lastEventTime":1000}"#,
    );
    let messages = [(r#"{"k":"u1","v":1}"#, 60_000), (r#"{"k":"u2","v":2}"#, 200_000)];
    let cycle = batch(&mut host, &messages);
    let emits = [r#"["u1",0,31000,{"sum":9}]"#, r#"["u1",60000,90000,{"sum":1}]"#];
    assert_eq!(payloads(&cycle), emits);
    let row = r#"sess:30|open|u2 {"acc":{"sum":2},"sessionStart":200000,"lastEventTime":200000}"#;
    assert_eq!(ops(&cycle), ["delete sess:30|open|u1", row]);
}

/// operators V5: keys of calendar windows.
#[test]
fn cron_keys() {
    for (unit, key) in [
        (Cron::Second, "cron:second|2026-08-04T10:00:37.000Z|p1"),
        (Cron::Minute, "cron:minute|2026-08-04T10:00:00.000Z|p1"),
        (Cron::Hour, "cron:hour|2026-08-04T10:00:00.000Z|p1"),
        (Cron::Day, "cron:day|2026-08-04T00:00:00.000Z|p1"),
        (Cron::Week, "cron:week|2026-08-03T00:00:00.000Z|p1"),
    ] {
        let fold = move || stream::<Event>().cron(unit).aggregate(sum);
        let mut host = TestHost::new(move || with_bounds(fold()));
        let cycle = batch(&mut host, &[(r#"{"v":1}"#, T0 + 37_123)]);
        assert!(ops(&cycle)[0].starts_with(key), "{:?}", ops(&cycle));
    }
}

/// Sections 4, 9 and 11 of the operators: odd rows, odd keys and odd numbers.
#[test]
fn odd_rows_and_keys() {
    let fold = || stream::<Event>().key_by(key).tumbling(secs(10)).aggregate(sum);
    let mut host = TestHost::new(move || with_bounds(fold()));
    // The whole value is the accumulator, the bounds come from the key, strings count as 0.
    host.store("tumb:10\u{1f}1970-01-01T00:00:00.000Z\u{1f}a", r#"{"sum":"7"}"#);
    host.store("tumb:10\u{1f}1970-01-01T00:00:00.000Z\u{1f}b", r#"{"acc":{"sum":2.5}}"#);
    host.store("tumb:100\u{1f}1970-01-01T00:00:00.000Z\u{1f}b", r#"{"acc":{"sum":1000}}"#);
    let messages = [
        (r#"{"k":"a","v":1}"#, 0),
        (r#"{"k":"b","v":0.5}"#, 0),
        ("{\"k\":\"x\\u001fy\",\"v\":1}", 0),
        (r#"{"k":"z","v":"none"}"#, 0),
    ];
    let cycle = batch(&mut host, &messages);
    assert_eq!(payloads(&cycle), [r#"["a",0,0,{"sum":1}]"#, r#"["b",0,0,{"sum":3}]"#]);
    assert_eq!(cycle.rejects.iter().map(|r| r.index).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(host.rows().len(), 1);
}
