//! Stages, sinks, and mistakes in a chain.

use foldmq_guest::prelude::*;
use foldmq_guest::testing::{TestError, TestHost};
use foldmq_guest::{Failure, Manifest, Pipeline, Windowed};
use serde_json::{Value, json};

use crate::{Event, batch, payloads};

/// operators V13: shapes of payloads and the default partition.
#[test]
fn payload_shapes() {
    let mut host = TestHost::new(|| stream::<Value>().sink("out"));
    let cycle = batch(&mut host, &[("1", 1), ("null", 2), ("[2]", 3), (r#"{"a":3}"#, 4)]);
    let texts: Vec<&str> = cycle.emits.iter().map(|e| e.payload.as_str()).collect();
    assert_eq!(texts, [r#"{"value":1}"#, r#"{"value":null}"#, r#"{"value":[2]}"#, r#"{"a":3}"#]);
    assert!(cycle.emits.iter().all(|e| e.partition == "lane"));
    host.partition("", "p2");
    assert_eq!(batch(&mut host, &[("1", 5)]).emits[0].partition, "Default");
}

/// operators V14: what a stage after a window knows.
#[test]
fn window_of_a_stage() {
    let fold = || stream::<Event>().tumbling(secs(10)).grace(secs(2)).aggregate(|a| a.count("n"));
    let mut host = TestHost::new(move || {
        let all = |n: foldmq_guest::Totals, w: &Closed| {
            json!([
                n["n"],
                w.partition(),
                w.partition_id(),
                w.key,
                w.window_key(),
                w.start.ms(),
                w.end.ms()
            ])
        };
        fold().map(all).sink("out")
    });
    batch(&mut host, &[(r#"{"v":1}"#, 5_000)]);
    assert_eq!(host.tick(11_999).expect("nothing is due").emits, []);
    let flush = host.tick(12_000).expect("the window closes");
    let want = r#"[1,"lane","p1","p1","1970-01-01T00:00:00.000Z",0,10000]"#;
    assert_eq!(payloads(&flush), [want]);
}

/// Section 10 of the operators: where the stages drop everything, the deletes still commit.
#[test]
fn dropped_emits_leave_no_rows() {
    let fold = || stream::<Event>().tumbling(secs(10)).aggregate(|a| a.count("n"));
    let mut host = TestHost::new(move || fold().filter(|_, _| false).sink("out"));
    batch(&mut host, &[(r#"{"v":1}"#, 5_000)]);
    host.tick(10_000).expect("the window closes");
    assert_eq!((host.rows().len(), host.emits().len()), (0, 0));
}

/// A message is folded whole or not at all, and a failure commits nothing.
#[test]
fn verdicts_on_one_record_of_many() {
    let judge = |v: i64| match v {
        -1 => Err(Refuse::Reject("bad".into())),
        -2 => Err(Failure::Retry("later".into()).into()),
        0 => Err(Refuse::Skip("zero".into())),
        v => Ok(v),
    };
    let fold = move || stream::<Vec<i64>>().flat_map(|list| list).try_map(judge).sink("out");
    let mut host = TestHost::new(fold);
    let cycle = batch(&mut host, &[("[1, 0, 2]", 1), ("[3, 0, -1, 4]", 2), ("[5]", 3)]);
    assert_eq!(payloads(&cycle), ["1", "2", "5"]);
    assert_eq!((host.tally("zero"), host.dead_letters()[0].reason.as_str()), (1, "bad"));
    host.push("[6, -2]", 4);
    let failed = host.run_batch(10);
    assert_eq!(failed, Err(TestError::Fold(Failure::Retry("later".into()))));
    assert_eq!((host.backlog(), host.emits().len()), (1, 3));
}

/// An accumulator that cannot be read halts the query and names the row.
#[test]
fn unreadable_state_halts() {
    let fold = || stream::<Event>().tumbling(secs(10)).reduce(0_u32, |n, _| *n += 1).sink("out");
    let mut host = TestHost::new(fold);
    host.store("tumb:10\u{1f}1970-01-01T00:00:00.000Z\u{1f}p1", r#"{"acc":"x"}"#);
    host.push(r#"{"v":1}"#, 5);
    let Err(TestError::Fold(Failure::Halt(text))) = host.run_batch(10) else {
        panic!("the fold went on");
    };
    assert!(text.contains("tumb:10") && text.contains("invalid type"), "{text}");
}

fn describe(fold: impl Fn() -> Pipeline + 'static) -> Result<Manifest, String> {
    TestHost::with_params(fold, "").map(|host| host.manifest().clone())
}

/// Section 2 of the operators: mistakes are told when the fold describes itself.
#[test]
fn mistakes_are_told() {
    fn counted(window: Windowed<Event>) -> Pipeline {
        window.aggregate(|a| a.count("n")).sink("out")
    }
    let e = || stream::<Event>();
    assert!(describe(move || counted(e().tumbling(secs(1)))).is_ok());
    for (text, fold) in [
        ("above 0", Box::new(move || counted(e().tumbling(secs(0)))) as Box<dyn Fn() -> Pipeline>),
        ("above 0", Box::new(move || counted(e().session(secs(0))))),
        ("multiple", Box::new(move || counted(e().sliding(secs(10), secs(3))))),
        ("need event_time", Box::new(move || counted(e().tumbling(secs(1)).idle_ms(5)))),
        ("at least one", Box::new(move || e().tumbling(secs(1)).aggregate(|a| a).end())),
        (
            "two fields",
            Box::new(move || {
                e().tumbling(secs(1)).aggregate(|a| a.avg("a", |e| e.v).avg("b", |e| e.v)).end()
            }),
        ),
        ("name of a queue", Box::new(move || e().sink(""))),
        ("reducer is needed", Box::new(move || e().session(secs(1)).annotate().end())),
        ("above 0", Box::new(move || e().token_bucket(TokenBucket::new(-1.0, 1.0), |_| 1.0).end())),
    ] {
        let told = describe(fold).expect_err(text);
        assert!(told.contains(text), "{told}");
    }
    assert!(TestHost::with_params(move || e().end(), r#"{"limit":1}"#).is_err());
}
