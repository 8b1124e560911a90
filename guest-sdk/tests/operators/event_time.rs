//! Event time: watermark, late records, flush.

use foldmq_guest::prelude::*;
use foldmq_guest::testing::TestHost;
use foldmq_guest::{Timers, Windowed};

use crate::{Event, batch, ops, payloads, with_bounds};

fn tens() -> Windowed<Event> {
    stream::<Event>().tumbling(secs(10)).event_time(|e| e.ts)
}

/// A host for a sum over tens of seconds, with what `more` asks for.
fn host(more: impl Fn(Windowed<Event>) -> Windowed<Event> + 'static) -> TestHost {
    TestHost::new(move || with_bounds(more(tens()).aggregate(|a| a.sum("sum", |e| e.v))))
}

fn events(host: &mut TestHost, events: &[(i64, i64)]) -> (Vec<String>, Vec<String>) {
    let payload = |(ts, v): &(i64, i64)| format!(r#"{{"ts":{ts},"v":{v}}}"#);
    let texts: Vec<String> = events.iter().map(payload).collect();
    let messages: Vec<(&str, i64)> = texts.iter().map(|t| (t.as_str(), 5)).collect();
    let cycle = batch(host, &messages);
    (payloads(&cycle), ops(&cycle))
}

fn row(start: i64, sum: i64) -> String {
    let (iso, end) = (Timestamp(start).iso(), start + 10_000);
    format!(r#"tumb:10|{iso}|p1 {{"acc":{{"sum":{sum}}},"windowStart":{start},"windowEnd":{end}}}"#)
}

fn watermark(at: i64) -> String {
    format!(r#"__wm__ {{"eventTimeMs":{at}}}"#)
}

fn delete(start: i64) -> String {
    format!("delete tumb:10|{}|p1", Timestamp(start).iso())
}

/// operators V6: lateness 30, drop.
#[test]
fn late_records_are_dropped_and_counted() {
    let mut host = host(|w| w.allowed_lateness(secs(30)));
    assert_eq!(host.manifest().timers, Timers::Watermark);
    let (_, done) = events(&mut host, &[(100_000, 1)]);
    assert_eq!(done, [row(100_000, 1), watermark(70_000)]);
    let (_, done) = events(&mut host, &[(75_000, 5), (60_000, 999), (70_000, 2)]);
    assert_eq!(done, [row(70_000, 7), watermark(70_000)]);
    assert_eq!((host.tally("late"), host.backlog()), (1, 0));
    let (emitted, done) = events(&mut host, &[(200_000, 0)]);
    let want = [r#"["p1",70000,80000,{"sum":7}]"#, r#"["p1",100000,110000,{"sum":1}]"#];
    assert_eq!(emitted, want);
    assert_eq!(done, [delete(70_000), delete(100_000), row(200_000, 0), watermark(170_000)]);
}

/// operators V7: the order inside a batch makes nothing late.
#[test]
fn nothing_is_late_inside_a_batch() {
    let mut host = host(|w| w);
    let (emitted, done) = events(&mut host, &[(60_000, 1), (1_000, 2)]);
    assert_eq!(emitted, [r#"["p1",0,10000,{"sum":2}]"#]);
    assert_eq!(done, [row(60_000, 1), watermark(60_000)]);
    assert_eq!(host.tally("late"), 0);
}

/// operators V8: include opens a closed window again.
#[test]
fn late_records_are_included() {
    let mut host = host(|w| w.on_late(Late::Include));
    let (_, done) = events(&mut host, &[(1_000, 1)]);
    assert_eq!(done, [row(0, 1), watermark(1_000)]);
    let (emitted, done) = events(&mut host, &[(90_000, 0)]);
    assert_eq!(emitted, [r#"["p1",0,10000,{"sum":1}]"#]);
    assert_eq!(done, [delete(0), row(90_000, 0), watermark(90_000)]);
    let (emitted, done) = events(&mut host, &[(500, 7)]);
    assert_eq!(emitted, [r#"["p1",0,10000,{"sum":7}]"#]);
    assert_eq!(done, [watermark(90_000)]);
}

/// operators V9: ticks of the broker's clock close nothing; only the watermark does, or the
/// decision that time has passed, which makes what comes later late.
#[test]
fn flush_follows_the_watermark() {
    let mut host = host(|w| w);
    events(&mut host, &[(1_000, 1), (2_000, 1)]);
    for now in [10_000, 1_000_000, i64::MAX] {
        assert_eq!(host.tick(now).expect("nothing is due").emits, []);
    }
    assert_eq!(host.watermark(), Some(2_000));
    let flush = host.flush_at(12_000).expect("the window closes");
    assert_eq!(payloads(&flush), [r#"["p1",0,10000,{"sum":2}]"#]);
    assert_eq!(ops(&flush), [delete(0), watermark(12_000)]);
    let (_, done) = events(&mut host, &[(11_999, 1)]);
    assert_eq!((done, host.tally("late")), (vec![watermark(12_000)], 1));
}

/// Late records of overlapping windows go to the side queue once for each window, count once, and
/// the payload stays as it came.
#[test]
fn late_records_go_aside() {
    let fold = || stream::<Event>().sliding(secs(20), secs(10)).event_time(|e| e.ts);
    let fold = move || fold().on_late(Late::Side("late".into())).aggregate(|a| a.count("n"));
    let mut host = TestHost::new(move || with_bounds(fold()));
    assert_eq!(host.manifest().sinks, ["late", "out"]);
    events(&mut host, &[(100_000, 1)]);
    let cycle = batch(&mut host, &[(r#"{ "ts": 35000, "v": 1.0, "x": 1e2 }"#, 5)]);
    let aside = |start: i64| {
        let end = start + 20_000;
        let window = format!(r#""key":"p1","windowStart":{start},"windowEnd":{end}"#);
        let event = r#""eventTime":35000,"watermark":100000"#;
        format!(r#"{{{window},{event},"payload":{{ "ts": 35000, "v": 1.0, "x": 1e2 }}}}"#)
    };
    assert_eq!(payloads(&cycle), [aside(20_000), aside(30_000)]);
    assert!(cycle.emits.iter().all(|e| (&*e.queue, &*e.partition) == ("late", "lane")));
    assert_eq!(host.tally("late"), 1);
}

/// A record without a time, or with one outside of the calendar, takes nobody with it.
#[test]
fn times_that_are_none() {
    let mut host = host(|w| {
        w.event_time(|e| if e.v < 0.0 { Err(Refuse::Skip("negative".into())) } else { Ok(e.ts) })
    });
    let (_, done) = events(&mut host, &[(1_000, -1), (i64::MAX, 1), (3_000, 4)]);
    assert_eq!(done, [row(0, 4), watermark(3_000)]);
    assert_eq!((host.tally("negative"), host.dead_letters().len()), (1, 1));
    // A batch that leaves nothing keeps the watermark.
    let (emitted, done) = events(&mut host, &[(50_000, -1)]);
    assert_eq!((emitted.len(), done), (0, vec![watermark(3_000)]));
}
