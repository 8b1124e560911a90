//! Guests that mean harm, or are broken.

use std::time::Instant;

use super::{
    guest::{Guest, nothing},
    *,
};
use crate::fold::{Blame, TrapKind};

fn trap_kind(error: &Error) -> TrapKind {
    match error.kind() {
        ErrorKind::Trap { kind, .. } => *kind,
        kind => panic!("no trap: {kind:?}"),
    }
}

#[test]
fn an_endless_loop_is_cut_off() {
    let lab = Lab::new();
    let begun = Instant::now();
    let error = lab.start_error(&Guest::starting("(loop $l (br $l)) (unreachable)"));
    assert!(matches!(error.kind(), ErrorKind::Deadline { limit_ms: 150 }), "{error}");
    assert!(!error.is_deterministic());
    assert_eq!(error.blame(), Blame::Guest);
    assert!(error.usage().cpu_us > 10_000, "{:?}", error.usage());
    assert!(begun.elapsed().as_secs() < 5);
    assert_eq!(lab.engine.stats().deadlines, 1);
}

#[test]
fn an_endless_start_function_is_cut_off() {
    let mut guest = Guest::new();
    guest.extra = "(func $init (loop $l (br $l))) (start $init)".into();
    let error = Lab::new().module(&guest).describe("").expect_err("it never ends");
    assert_eq!(error.code(), "deadline");
}

#[test]
fn memory_ends_at_its_limit_with_a_trap() {
    let guest =
        Guest::starting("(loop $l (drop (memory.grow (i32.const 16))) (br $l)) (unreachable)");
    let error = Lab::new().start_error(&guest);
    assert!(
        matches!(error.kind(), ErrorKind::Memory { what: "bytes", limit: 67_108_864, .. }),
        "{error}"
    );
    assert!(error.is_deterministic());
    assert!(error.usage().peak_memory_bytes <= 64 << 20);
}

#[test]
fn a_maximum_of_the_guests_own_is_no_limit_of_the_host() {
    let mut guest = Guest::new();
    let answer = guest.start.clone();
    guest.start = format!(
        "(if (i32.ne (memory.grow (i32.const 100)) (i32.const -1)) (then (unreachable))) {answer}"
    );
    let wat = guest.wat().replace(r#"(export "memory") 2"#, r#"(export "memory") 2 3"#);
    let lab = Lab::new();
    let module = lab.load(&wat::parse_str(wat).expect("a module")).expect("it loads");
    done(module.start(&context(), &batch()).expect("growth answers -1"));
}

#[test]
fn tables_end_at_their_limit_with_a_trap() {
    let mut guest =
        Guest::starting("(drop (table.grow $t (ref.null func) (i32.const 1000000))) (unreachable)");
    guest.extra = "(table $t 1 funcref)".into();
    let error = Lab::new().start_error(&guest);
    assert!(matches!(error.kind(), ErrorKind::Memory { what: "table elements", .. }), "{error}");
}

#[test]
fn recursion_overflows_the_guests_stack_only() {
    let mut guest = Guest::starting("(call $again (i32.const 0))");
    guest.extra = "(func $again (param i32) (result i32)
        (i32.add (i32.const 1) (call $again (i32.add (local.get 0) (i32.const 1)))))"
        .into();
    let error = Lab::new().start_error(&guest);
    assert_eq!(trap_kind(&error), TrapKind::StackOverflow);
    assert!(error.backtrace().len() <= 32);
}

#[test]
fn traps_have_their_kind() {
    let lab = Lab::new();
    for (body, kind) in [
        ("(unreachable)", TrapKind::Unreachable),
        ("(i32.load (i32.const -8))", TrapKind::MemoryOutOfBounds),
        ("(i32.div_u (i32.const 1) (i32.const 0))", TrapKind::Arithmetic),
        ("(i32.trunc_f32_s (f32.const nan))", TrapKind::Arithmetic),
        ("(call_indirect (result i32) (i32.const 0))", TrapKind::BadTableAccess),
    ] {
        let mut guest = Guest::starting(body);
        guest.extra = "(table 1 funcref)".into();
        let error = lab.start_error(&guest);
        assert_eq!(trap_kind(&error), kind, "{body}");
        assert_eq!(error.backtrace(), ["start"], "{body}");
    }
}

#[test]
fn answers_that_are_no_values_are_refused() {
    let lab = Lab::new();
    let answer = |bytes: &[u8]| {
        let mut guest = Guest::new();
        guest.start = format!("(i32.const {})", guest.bytes(bytes));
        guest
    };
    let mut list = [0_u8; 80];
    list[8] = 1;
    // A list of ops far outside of memory.
    list[16..24].copy_from_slice(&[0, 0, 0, 0xf0, 1, 0, 0, 0]);
    let mut long = list;
    // A list of ops longer than memory.
    long[16..24].copy_from_slice(&[0, 4, 0, 0, 0xff, 0xff, 0xff, 0]);
    let mut text = [0_u8; 80];
    text[0] = 1;
    // A failure whose text is one byte of this record that is no UTF-8.
    text[40] = 0xff;
    let mut guest = Guest::new();
    let at = guest.bytes(&text);
    let patched = (at + 40).to_le_bytes();
    text[12..16].copy_from_slice(&patched);
    text[16] = 1;
    let cases = [
        ("discriminant of the result", answer(&[9; 80])),
        ("pointer of a list", answer(&list)),
        ("length of a list", answer(&long)),
        ("answer outside of memory", Guest::starting("(i32.const -16)")),
        ("unaligned answer", Guest::starting("(i32.const 1027)")),
    ];
    for (what, guest) in cases {
        let error = lab.start_error(&guest);
        assert_eq!((error.code(), error.blame()), ("bad_result", Blame::Guest), "{what}: {error}");
        assert!(error.is_deterministic(), "{what}");
    }
    let error = lab.start_error(&{
        let mut guest = Guest::new();
        let at = guest.bytes(&text);
        let text_at = (at + 40).to_le_bytes();
        let word = u32::from_le_bytes(text_at);
        guest.start =
            format!("(i32.store (i32.const {}) (i32.const {word})) (i32.const {at})", at + 12);
        guest
    });
    assert_eq!(error.code(), "bad_result", "{error}");
}

#[test]
fn a_bad_allocator_is_the_guests_fault() {
    let wat = Guest::new()
        .wat()
        .replace("(local.get $at))\n  (func $describe", "(i32.const -8))\n  (func $describe");
    let lab = Lab::new();
    let module = lab.load(&wat::parse_str(wat).expect("a module")).expect("it loads");
    let error = module.start(&context(), &batch()).expect_err("nowhere to put the batch");
    assert_eq!((error.code(), error.blame()), ("bad_result", Blame::Guest), "{error}");
}

#[test]
fn one_text_returned_a_thousand_times_is_too_large() {
    // Each of 1,000 deletes names the same 100 kB: 100 MB for the host, 140 kB in the guest.
    let mut guest = Guest::new();
    let answer = guest.start.clone();
    let ops = guest.bytes(&[0; 40_000]);
    guest.pages = 4;
    guest.extra = format!(
        "(func $fill (local $n i32) (local $at i32)
           (local.set $at (i32.const {ops}))
           (loop $more
             (i32.store8 (local.get $at) (i32.const 1))
             (i32.store offset=8 (local.get $at) (i32.const 131072))
             (i32.store offset=12 (local.get $at) (i32.const 100000))
             (local.set $at (i32.add (local.get $at) (i32.const 40)))
             (local.set $n (i32.add (local.get $n) (i32.const 1)))
             (br_if $more (i32.lt_u (local.get $n) (i32.const 1000)))))"
    );
    guest.start = format!(
        "(call $fill)
         (i32.store offset=16 {answer} (i32.const {ops}))
         (i32.store offset=20 {answer} (i32.const 1000))
         {answer}"
    );
    let error = Lab::new().start_error(&guest);
    assert!(matches!(error.kind(), ErrorKind::ResultTooLarge { limit: 8_388_608 }), "{error}");
    assert!(error.is_deterministic());
}

#[test]
fn a_thousand_traps_leave_no_slot_behind() {
    let lab = Lab::new();
    let bad = lab.module(&Guest::starting("(unreachable)"));
    let good = lab.module(&Guest::new());
    let before = lab.engine.stats();
    for _ in 0..1_000 {
        let error = bad.start(&context(), &batch()).expect_err("a trap");
        assert_eq!(trap_kind(&error), TrapKind::Unreachable);
    }
    let finished = done(good.start(&context(), &batch()).expect("the good module runs"));
    assert_eq!(finished.outcome, nothing());
    let after = lab.engine.stats();
    assert_eq!((after.instances, after.traps), (before.instances, before.traps + 1_000));
    assert_eq!(after.slots, 4);
}

#[test]
fn calls_wait_for_a_slot_and_then_name_the_setting() {
    let mut guest = Guest::new();
    guest.start = guest.asking(&Default::default());
    let lab = Lab::new();
    let module = lab.module(&guest);
    let mut held: Vec<_> =
        (0..4).map(|_| need(module.start(&context(), &batch()).expect("a free slot")).1).collect();
    let error = module.start(&context(), &batch()).expect_err("no slot is left");
    assert_eq!((error.code(), error.blame()), ("busy", Blame::Host));
    assert!(error.to_string().contains("calls_at_once"), "{error}");
    let waiting = std::thread::spawn({
        let module = Arc::clone(&module);
        move || module.start(&context(), &batch()).map(drop)
    });
    done(held.pop().expect("one").resume(&[]).expect("it goes on"));
    waiting.join().expect("no panic").expect("a slot became free");
    drop(held);
    assert_eq!(lab.engine.stats().instances, 0);
}
