//! Gates: what passes, what is undone, what is acked.

use foldmq_guest::prelude::*;
use foldmq_guest::testing::TestHost;
use foldmq_guest::{Ack, Clock};

use crate::{Event, batch, ops, payloads};

/// operators V10: token bucket, capacity 2, refill 1.
#[test]
fn token_bucket() {
    let fold = || stream::<Event>().token_bucket(TokenBucket::new(2.0, 1.0), |_| 1.0);
    let mut host = TestHost::new(move || fold().map(|e, _| e.v).sink("out"));
    assert_eq!(host.manifest().clock, Clock::Host);
    host.set_clock(1_000_000);
    let messages = [0, 1, 2, 3].map(|n| format!(r#"{{"v":{n}}}"#));
    let messages: Vec<(&str, i64)> = messages.iter().map(|m| (m.as_str(), 7)).collect();
    let cycle = batch(&mut host, &messages);
    assert_eq!(payloads(&cycle), ["0", "1"]);
    let row = r#"p1 {"tokens":0,"lastRefillAt":1000000,"allowedTotal":2,"consumedTotal":2}"#;
    assert_eq!(ops(&cycle), [row]);
    assert_eq!(cycle.ack, Ack::Prefix { count: 2, retry_after_ms: Some(1_000) });

    host.set_clock(1_001_500);
    let cycle = batch(&mut host, &[]);
    assert_eq!(payloads(&cycle), ["2"]);
    let row = r#"p1 {"tokens":0.5,"lastRefillAt":1001500,"allowedTotal":3,"consumedTotal":3}"#;
    assert_eq!(ops(&cycle), [row]);
    assert_eq!(cycle.ack, Ack::Prefix { count: 1, retry_after_ms: Some(500) });
}

/// operators V12: a gate counts messages, filtered ones too, and takes a message whole or not.
#[test]
fn gates_count_messages() {
    let fold = || {
        stream::<Event>().filter(|e| e.v != 1.0).gate(|seen: &mut Vec<f64>, e, _| {
            seen.push(e.v);
            e.v < 3.0
        })
    };
    let mut host = TestHost::new(move || fold().map(|e, _| e.v).sink("out"));
    let messages = [0, 1, 2, 3, 4].map(|n| format!(r#"{{"v":{n}}}"#));
    let messages: Vec<(&str, i64)> = messages.iter().map(|m| (m.as_str(), 7)).collect();
    let cycle = batch(&mut host, &messages);
    assert_eq!(
        (payloads(&cycle), ops(&cycle)),
        (vec!["0".into(), "2".into()], vec!["p1 [0,2]".into()])
    );
    assert_eq!(cycle.ack, Ack::Prefix { count: 3, retry_after_ms: None });

    let fold = || {
        stream::<Vec<i64>>().flat_map(|list| list).gate(|last: &mut i64, v, _| {
            *last = *v;
            *v < 3
        })
    };
    let mut host = TestHost::new(move || fold().sink("out"));
    let cycle = batch(&mut host, &[("[1,2,3]", 1)]);
    assert_eq!((cycle.ops.len(), cycle.emits.len()), (0, 0));
    assert_eq!(cycle.ack, Ack::Prefix { count: 0, retry_after_ms: None });
}

/// Section 12 of the operators: states come in the order of their first pass, rejects and tallies
/// only with the messages that are settled, reserved keys are dead letters.
#[test]
fn only_what_is_settled_counts() {
    let fold = || {
        stream::<Event>()
            .skip_if("zero", |e| e.v == 0.0)
            .key_by(|e| e.k.clone().unwrap_or_default())
            .gate(|n: &mut u32, e, at| {
                *n += 1;
                e.v < 9.0 && at.partition == "lane"
            })
    };
    let mut host = TestHost::new(move || fold().map(|e, at| (at.key.clone(), e.v)).sink("out"));
    let messages = [
        (r#"{"k":"z","v":1}"#, 1),
        (r#"{"k":"__wm__","v":1}"#, 1),
        (r#"{"v":0}"#, 1),
        (r#"{"k":"a","v":2}"#, 1),
        (r#"{"k":"z","v":3}"#, 1),
        (r#"{"k":"z","v":9}"#, 1),
        ("broken", 1),
        (r#"{"v":0}"#, 1),
    ];
    let cycle = batch(&mut host, &messages);
    assert_eq!(ops(&cycle), ["z 2", "a 1"]);
    assert_eq!(payloads(&cycle), [r#"["z",1]"#, r#"["a",2]"#, r#"["z",3]"#]);
    assert_eq!(cycle.ack, Ack::Prefix { count: 5, retry_after_ms: None });
    assert_eq!((host.dead_letters().len(), host.tally("zero"), host.backlog()), (1, 1, 3));

    // Nothing but filtered messages: a full ack with no ops.
    let mut host = TestHost::new(|| {
        stream::<Event>().filter(|_| false).gate(|_: &mut u32, _, _| false).sink("out")
    });
    let cycle = batch(&mut host, &[(r#"{"v":1}"#, 1)]);
    assert_eq!((cycle.ack, cycle.ops.len(), host.backlog()), (Ack::All, 0, 0));
}
