//! What a well-behaved guest sees and gets.

use super::{
    guest::{Guest, manifest, nothing},
    *,
};
use crate::fold::{Ack, Blame, Emit, Failure, Level, Op, Outcome, Reads, Reject, Tally};

#[test]
fn a_full_outcome_comes_through_as_it_was_returned() {
    let outcome = Outcome {
        ops: vec![
            Op::Upsert { key: "k".into(), value: r#"{"n":1}"#.into(), due_at: Some(-5) },
            Op::Upsert { key: "l".into(), value: "2".into(), due_at: None },
            Op::Delete { key: "m".into() },
        ],
        emits: vec![
            Emit {
                queue: "out".into(),
                partition: "p".into(),
                payload: r#""\u0000 ü 1e400""#.into(),
                transaction_id: None,
            },
            Emit {
                queue: "out".into(),
                partition: String::new(),
                payload: "1e400".into(),
                transaction_id: Some("t".into()),
            },
        ],
        rejects: vec![Reject { index: 0, reason: "bad".into() }],
        tallies: vec![Tally { cause: "late".into(), count: u64::MAX }],
        ack: Ack::Prefix { count: 1, retry_after_ms: Some(9) },
        watermark: Some(500),
    };
    let lab = Lab::new();
    let module = lab.module(&Guest::returning(&outcome));
    let finished = done(module.start(&context(), &batch()).expect("it runs"));
    assert_eq!(finished.outcome, outcome);
    assert!(finished.usage.peak_memory_bytes >= 2 << 16, "{:?}", finished.usage);
    assert_eq!(*module.describe("").expect("a manifest"), manifest());
    assert!(!module.migrates());
}

#[test]
fn rows_that_were_asked_for_come_back_to_the_same_instance() {
    let reads = Reads {
        keys: vec!["b".into(), "a".into(), "b".into()],
        prefixes: vec![String::new()],
        due: Some(77),
    };
    let mut guest = Guest::returning(&nothing());
    // The answer counts the rows, and the messages that start left in a global.
    let answer = guest.resume.clone();
    guest.extra = "(global $seen (mut i32) (i32.const 0))".into();
    let ask = guest.asking(&reads);
    guest.start = format!("(global.set $seen (local.get $messages)) {ask}");
    let cause = guest.bytes(b"a");
    let tally = guest.bytes(&[0; 16]);
    guest.resume = format!(
        "(i32.store (i32.const {tally}) (i32.const {cause}))
        (i32.store offset=4 (i32.const {tally}) (i32.const 1))
        (i32.store offset=8 (i32.const {tally})
          (i32.add (i32.mul (local.get $count) (i32.const 10)) (global.get $seen)))
        (i32.store offset=40 {answer} (i32.const {tally}))
        (i32.store offset=44 {answer} (i32.const 1))
        {answer}"
    );
    let lab = Lab::new();
    let module = lab.module(&guest);
    let (asked, suspended) = need(module.start(&context(), &batch()).expect("it runs"));
    assert_eq!(asked.keys, ["a", "b"]);
    assert_eq!((asked.prefixes.as_slice(), asked.due), ([String::new()].as_slice(), Some(77)));
    assert_eq!(lab.engine.stats().instances, 1);
    // The clock of the deadline stands still while rows are read.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let rows: Vec<_> = ["a", "b", "c"].map(|key| Entry { key, value: "{}" }).to_vec();
    let elsewhere = std::thread::spawn(move || suspended.resume(&rows));
    let finished = done(elsewhere.join().expect("no panic").expect("it goes on"));
    assert_eq!(finished.outcome.tallies, [Tally { cause: "a".into(), count: 32 }]);
    assert_eq!(finished.usage.rounds, 1);
    assert_eq!(lab.engine.stats().instances, 0);
}

#[test]
fn asking_for_rows_ends_after_four_rounds() {
    let mut guest = Guest::new();
    guest.start = guest.asking(&Reads::default());
    guest.resume = guest.start.clone();
    let lab = Lab::new();
    let mut progress = lab.module(&guest).start(&context(), &batch()).expect("it runs");
    for _ in 0..3 {
        progress = need(progress).1.resume(&[]).expect("a further round");
    }
    let error = need(progress).1.resume(&[]).expect_err("the fifth round");
    assert!(matches!(error.kind(), ErrorKind::TooManyRounds { limit: 4 }), "{error}");
    assert!(error.is_deterministic());
}

#[test]
fn more_rows_than_allowed_are_not_handed_over() {
    let mut guest = Guest::new();
    guest.start = guest.asking(&Reads::default());
    let lab = Lab::new();
    let progress = lab.module(&guest).start(&context(), &batch()).expect("it runs");
    let rows = vec![Entry { key: "k", value: "1" }; 10_001];
    let error = need(progress).1.resume(&rows).expect_err("too many");
    assert!(matches!(error.kind(), ErrorKind::TooManyRows { asked: 10_001, limit: 10_000 }));
    assert_eq!(lab.engine.stats().instances, 0);
}

#[test]
fn a_batch_beyond_the_limits_is_the_callers_fault() {
    let lab = Lab::new();
    let module = lab.module(&Guest::new());
    let payload = format!("\"{}\"", "x".repeat(3 << 20));
    let large = Message { payload: &payload, ..batch()[0] };
    let error = module.start(&context(), &[large, large]).expect_err("6 MiB");
    assert_eq!((error.code(), error.blame()), ("input", Blame::Host));
    done(module.start(&context(), &[large]).expect("one large message"));
    let many = vec![batch()[0]; 1_001];
    assert_eq!(module.start(&context(), &many).expect_err("1,001").code(), "input");
    done(module.start(&context(), &many[1..]).expect("1,000 messages"));
}

#[test]
fn failures_and_refusals_keep_their_text() {
    let lab = Lab::new();
    for (tag, failure, code) in
        [(0, Failure::Retry, "failure_retry"), (1, Failure::Halt, "failure_halt")]
    {
        let mut guest = Guest::new();
        guest.start = guest.failing(tag, "not\0now");
        let error = lab.start_error(&guest);
        assert_eq!(error.to_string(), "not\u{fffd}now");
        assert_eq!((error.code(), error.blame()), (code, Blame::Guest));
        assert!(matches!(error.kind(), ErrorKind::Failure { failure: f, .. } if *f == failure));
    }
    let mut guest = Guest::new();
    guest.describe = Some(guest.refusing("window must be positive"));
    let error = lab.module(&guest).describe("{}").expect_err("refused");
    assert_eq!(error.to_string(), "params refused: window must be positive");
    assert_eq!(lab.start_error(&guest).code(), "params");
}

#[test]
fn a_panic_text_explains_the_trap() {
    let mut guest = Guest::new();
    let lines = [
        guest.logging(1, "before"),
        guest.logging(3, "panicked at src/lib.rs:19:47: negative amount"),
    ];
    let callee = "_ZN6flights5countE::h0123456789abcdef";
    guest.extra = format!(r#"(func $"{callee}" (result i32) {} (unreachable))"#, lines.join(" "));
    guest.start = format!(r#"(call $"{callee}")"#);
    let lab = Lab::new();
    let error = lab.start_error(&guest);
    assert_eq!(error.to_string(), "unreachable: panicked at src/lib.rs:19:47: negative amount");
    assert_eq!(error.backtrace(), ["_ZN6flights5countE", "start"]);
    assert_eq!(error.logs().lines.len(), 2);
    assert_eq!(error.logs().lines[0].level, Level::Info);
    assert!(error.is_deterministic());
    assert_eq!((lab.engine.stats().traps, lab.engine.stats().guest_errors), (1, 1));
}

#[test]
fn a_log_flood_keeps_its_head_and_the_panic() {
    let mut guest = Guest::new();
    let line = guest.logging(0, &format!("{}ü", "x".repeat(4_095)));
    let panic = guest.logging(3, "panicked at the end");
    guest.extra = format!(
        "(func $flood (local $n i32)
           (loop $more {line}
             (local.set $n (i32.add (local.get $n) (i32.const 1)))
             (br_if $more (i32.lt_u (local.get $n) (i32.const 1000)))))"
    );
    guest.start = format!("(call $flood) {panic} (unreachable)");
    let error = Lab::new().start_error(&guest);
    let logs = error.logs();
    assert_eq!((logs.lines.len(), logs.dropped_lines), (100, 901));
    assert_eq!(logs.lines[0].text.len(), 4_095, "cut between characters");
    assert!(error.to_string().contains("panicked at the end"), "{error}");
    assert!(logs.note().expect("a note").starts_with("901 lines and "));
}

#[test]
fn every_batch_has_a_fresh_instance() {
    let mut guest = Guest::new();
    guest.extra = "(global $calls (mut i32) (i32.const 0))".into();
    let answer = guest.start.clone();
    guest.start = format!(
        "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
         (if (i32.gt_u (global.get $calls) (i32.const 1)) (then (unreachable)))
         {answer}"
    );
    let lab = Lab::new();
    let module = lab.module(&guest);
    for _ in 0..10 {
        done(module.start(&context(), &batch()).expect("it runs"));
    }
    let finished =
        done(module.flush(&context(), &[Entry { key: "k", value: "1" }]).expect("flush"));
    assert_eq!(finished.outcome, nothing());
}

#[test]
fn state_is_taken_over_by_migrate() {
    let mut guest = Guest::new();
    // One op: delete of the key "k".
    let key = guest.bytes(b"k");
    let mut op = [0_u8; 40];
    op[0] = 1;
    op[8..12].copy_from_slice(&key.to_le_bytes());
    op[12] = 1;
    let op = guest.bytes(&op);
    let mut answer = [0_u8; 12];
    answer[4..8].copy_from_slice(&op.to_le_bytes());
    answer[8] = 1;
    let answer = guest.bytes(&answer);
    guest.extra = format!(
        r#"(func (export "migrate") (param i32 i32 i32 i32) (result i32) (i32.const {answer}))"#
    );
    let lab = Lab::new();
    let module = lab.module(&guest);
    assert!(module.migrates());
    let old = ModuleHash::of(b"old");
    let ops = module.migrate(&old, &[Entry { key: "k", value: "1" }]).expect("it migrates");
    assert_eq!(ops, [Op::Delete { key: "k".into() }]);
    let error = lab.module(&Guest::new()).migrate(&old, &[]).expect_err("no such export");
    assert_eq!(error.code(), "module_export");
}
