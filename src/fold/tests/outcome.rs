//! Every way in which an outcome, a request for rows or a manifest can be wrong.

use super::{
    guest::{Guest, manifest, nothing},
    *,
};
use crate::fold::{
    Ack, Blame, Emit, Op, Outcome, Reads, Reject, Tally, Violation,
    json::{self, Kept},
    outcome::Rules,
};

fn check(mut outcome: Outcome) -> Result<Outcome, Violation> {
    let (limits, manifest) = (Limits::default(), manifest());
    let rules = Rules { limits: &limits, manifest: &manifest, batch_len: 3, watermark: Some(500) };
    outcome.check(&rules).map(|()| outcome)
}

fn violation(outcome: Outcome) -> Violation {
    check(outcome).expect_err("a violation")
}

fn upsert(key: &str, value: &str) -> Op {
    Op::Upsert { key: key.to_owned(), value: value.to_owned(), due_at: None }
}

fn emit(payload: &str) -> Emit {
    Emit {
        queue: "out".to_owned(),
        partition: "p".to_owned(),
        payload: payload.to_owned(),
        transaction_id: None,
    }
}

fn reject(index: u32) -> Reject {
    Reject { index, reason: "r".to_owned() }
}

#[test]
fn violations_name_field_index_and_limit() {
    let long = "x".repeat(2_000);
    let huge = format!("\"{}\"", "x".repeat(1 << 20));
    let ops = |op: Op| Outcome { ops: vec![upsert("a", "1"), op], ..nothing() };
    let emits = |emit: Emit| Outcome { emits: vec![emit], ..nothing() };
    let tally = |cause: &str| Outcome {
        tallies: vec![Tally { cause: cause.to_owned(), count: 1 }],
        ..nothing()
    };
    let cases = [
        (ops(upsert(&long, "1")), "ops.key", Some(1), Some(1_024)),
        (ops(Op::Delete { key: long.clone() }), "ops.key", Some(1), Some(1_024)),
        (ops(upsert("a\0b", "1")), "ops.key", Some(1), None),
        (ops(upsert("__wm__", "1")), "ops.key", Some(1), None),
        (ops(Op::Delete { key: "__wm__".to_owned() }), "ops.key", Some(1), None),
        (ops(upsert("a", &huge)), "ops.value", Some(1), Some(1 << 20)),
        (ops(upsert("a", "")), "ops.value", Some(1), None),
        (ops(upsert("a", r#""\u0000""#)), "ops.value", Some(1), None),
        (emits(Emit { queue: "other".to_owned(), ..emit("1") }), "emits.queue", Some(0), None),
        (emits(Emit { queue: String::new(), ..emit("1") }), "emits.queue", Some(0), None),
        (
            emits(Emit { partition: long.clone(), ..emit("1") }),
            "emits.partition",
            Some(0),
            Some(1_024),
        ),
        (
            emits(Emit { partition: "a\nb".to_owned(), ..emit("1") }),
            "emits.partition",
            Some(0),
            None,
        ),
        (emits(emit(&huge)), "emits.payload", Some(0), Some(1 << 20)),
        (emits(emit(r#""\ud800""#)), "emits.payload", Some(0), None),
        (
            emits(Emit { transaction_id: Some("x".repeat(65_536)), ..emit("1") }),
            "emits.transaction-id",
            Some(0),
            Some(65_535),
        ),
        (
            emits(Emit { transaction_id: Some("\u{1f}".to_owned()), ..emit("1") }),
            "emits.transaction-id",
            Some(0),
            None,
        ),
        (Outcome { ops: vec![upsert("a", "1"); 10_001], ..nothing() }, "ops", None, Some(10_000)),
        (Outcome { emits: vec![emit("1"); 10_001], ..nothing() }, "emits", None, Some(10_000)),
        (Outcome { rejects: vec![reject(0); 4], ..nothing() }, "rejects", None, Some(3)),
        (Outcome { rejects: vec![reject(3)], ..nothing() }, "rejects.index", Some(0), None),
        (
            Outcome { rejects: vec![reject(1), reject(1)], ..nothing() },
            "rejects.index",
            Some(1),
            None,
        ),
        (
            Outcome {
                rejects: vec![reject(1)],
                ack: Ack::Prefix { count: 1, retry_after_ms: None },
                ..nothing()
            },
            "rejects.index",
            Some(0),
            None,
        ),
        (
            Outcome { ack: Ack::Prefix { count: 4, retry_after_ms: None }, ..nothing() },
            "ack.prefix.count",
            None,
            Some(3),
        ),
        (tally(""), "tallies.cause", Some(0), None),
        (tally("\t"), "tallies.cause", Some(0), None),
        (Outcome { watermark: Some(499), ..nothing() }, "watermark", None, None),
    ];
    for (outcome, field, index, limit) in cases {
        let found = violation(outcome);
        assert_eq!((found.field, found.index, found.limit), (field, index, limit), "{found}");
    }
    let text = violation(Outcome { ops: vec![upsert(&long, "1")], ..nothing() }).to_string();
    assert_eq!(text, "ops.key (element 0): too many bytes (2000, limit 1024)");
}

#[test]
fn what_is_allowed_passes() {
    let outcome = Outcome {
        ops: vec![upsert("", "null"), upsert(&"k".repeat(1_024), r#"{"a":[1e400,-0.10]}"#)],
        emits: vec![emit(r#""\u0000 \ud83d\ude00 \\ud800""#)],
        rejects: vec![reject(2), Reject { index: 0, reason: "a\0b".repeat(2_000) }],
        watermark: Some(500),
        ..nothing()
    };
    let checked = check(outcome).expect("no violation");
    assert_eq!(checked.rejects[0].index, 0, "sorted by index");
    assert!(checked.rejects[0].reason.starts_with("a\u{fffd}b"));
    let none = Outcome { ack: Ack::Prefix { count: 0, retry_after_ms: None }, ..nothing() };
    assert_eq!(check(none).expect("a closed gate").acked(3), 0);
    assert_eq!(nothing().acked(3), 3);
}

#[test]
fn json_is_checked_to_the_last_escape() {
    let text = |text: &str| json::check(text, 128, Kept::AsText).is_ok();
    let jsonb = |text: &str| json::check(text, 128, Kept::AsJsonb).is_ok();
    for good in [
        "1",
        "-0",
        "1e400",
        "0.10",
        "18446744073709551615",
        "\"\"",
        "[]",
        "{}",
        " [1 , 2] ",
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        r#""\ud83d\ude00""#,
        r#""\\ud800""#,
        "\"ü\"",
        r#"{"\ud83d\ude00":1}"#,
    ] {
        assert!(text(good) && jsonb(good), "{good}");
    }
    for bad in [
        "",
        " ",
        "nul",
        "01",
        "1.",
        "+1",
        "NaN",
        "[1,]",
        "{\"a\"}",
        "\"a",
        "\"\t\"",
        "1 2",
        r#""\x""#,
        r#""\u12""#,
        r#""\ud800""#,
        r#""\ud800\u0041""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#"{"\ud800":1}"#,
        r#""\ud83d\\ude00""#,
    ] {
        assert!(!text(bad) && !jsonb(bad), "{bad}");
    }
    assert!(text(r#""\u0000""#) && !jsonb(r#""\u0000""#));
    assert!(text(r#"{"\u0000":1}"#) && !jsonb(r#"{"\u0000":1}"#));
    for far in ["1e8001", "1e-8001", "1e99999999999999999999999"] {
        assert!(text(far) && !jsonb(far), "{far}");
    }
    assert!(!jsonb(&"1".repeat(8_001)));
    assert!(jsonb("\"1e9999999\""), "digits in a string");
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(text(&nested(128)) && !text(&nested(129)) && !text(&nested(100_000)));
    assert!(text(&format!("[{}1]", "[],".repeat(1_000))), "wide is not deep");
}

#[test]
fn requests_for_rows_are_checked() {
    let limits = Limits::default();
    let check = |mut reads: Reads| reads.check(&limits).map(|()| reads);
    let keys = |keys: Vec<String>| Reads { keys, ..Reads::default() };
    for (reads, field) in [
        (keys(vec!["k".to_owned(); 10_001]), "need.keys and need.prefixes"),
        (keys(vec!["x".repeat(1_025)]), "need.keys"),
        (Reads { prefixes: vec!["\0".to_owned()], ..Reads::default() }, "need.prefixes"),
    ] {
        assert_eq!(check(reads).expect_err("a violation").field, field);
    }
}

#[test]
fn manifests_are_checked() {
    type Change = fn(&mut crate::fold::Manifest);
    let check = |change: Change| {
        let mut manifest = manifest();
        change(&mut manifest);
        manifest.check(&Limits::default()).map(|()| manifest)
    };
    check(|m| m.name = "ü".repeat(200)).expect("a long name in any script");
    check(|m| (m.name, m.version) = Default::default()).expect("no description");
    let sorted = check(|m| m.sinks = ["b", "a", "b"].map(str::to_owned).to_vec());
    assert_eq!(sorted.expect("sinks").sinks, ["a", "b"]);
    let cases: [(Change, _); 4] = [
        (|m| m.name = "a\nb".to_owned(), "manifest.name"),
        (|m| m.version = "x".repeat(1_025), "manifest.version"),
        (|m| m.sinks.push(String::new()), "manifest.sinks"),
        (|m| m.sinks = vec!["a".to_owned(); 101], "manifest.sinks"),
    ];
    for (change, field) in cases {
        assert_eq!(check(change).expect_err("a violation").field, field);
    }
}

#[test]
fn a_bad_outcome_of_a_guest_is_its_fault() {
    let lab = Lab::new();
    let outcome = Outcome { ops: vec![upsert("k", "{")], ..nothing() };
    let mut guest = Guest::returning(&outcome);
    let error = lab.start_error(&guest);
    assert_eq!((error.code(), error.blame()), ("bad_outcome", Blame::Guest));
    assert!(error.is_deterministic());
    assert!(error.to_string().starts_with("bad outcome: ops.value (element 0): is no JSON"));
    guest.start = guest.asking(&Reads { keys: vec!["a\0".to_owned()], ..Reads::default() });
    assert_eq!(lab.start_error(&guest).code(), "bad_outcome");
    let rejecting = Guest::returning(&Outcome { rejects: vec![reject(0)], ..nothing() });
    let module = lab.module(&rejecting);
    done(module.start(&context(), &batch()).expect("message 0 of a batch"));
    let error = module.flush(&context(), &[]).expect_err("there is no message in a flush");
    assert_eq!(error.code(), "bad_outcome");
    assert_eq!(lab.engine.stats().instances, 0);
}
