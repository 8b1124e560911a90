//! Reading the touched rows and the due ones gives what reading the whole shard gives.

use foldmq_guest::prelude::*;
use foldmq_guest::testing::TestHost;
use foldmq_guest::{Context, Entry, Manifest, Message, Outcome, Pipeline, Reads, Step, Windowed};

use crate::{Event, with_bounds};

/// A fold that asks for the whole shard instead of what it asks for.
struct WholeShard(Pipeline);

impl Fold for WholeShard {
    fn describe(&self, params: &str) -> Result<Manifest, String> {
        self.0.describe(params)
    }

    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Step, Failure> {
        let step = self.0.start(ctx, batch)?;
        Ok(match step {
            Step::Need(_) => {
                Step::Need(Reads { prefixes: vec![String::new()], ..Reads::default() })
            }
            done @ Step::Done(_) => done,
        })
    }

    fn resume(&mut self, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.0.resume(rows)
    }

    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Step, Failure> {
        self.0.flush(ctx, rows)
    }
}

/// The same events in the same batches; what every batch gave.
fn run(mut host: TestHost, seed: u64) -> Vec<Outcome> {
    let mut state = seed;
    let mut next = |below: i64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(state >> 33).unwrap_or(0) % below
    };
    let (mut now, mut outcomes) = (0, Vec::new());
    for _ in 0..60 {
        for _ in 0..next(6) {
            now += next(4_000);
            let (key, ts, v) = (next(4), now - next(9_000), next(100));
            host.push(format!(r#"{{"k":"{key}","ts":{ts},"v":{v}}}"#), now);
        }
        if host.backlog() > 0 {
            outcomes.push(host.run_batch(100).expect("a batch is folded"));
        }
    }
    outcomes.push(host.flush_at(now + 1_000_000).expect("everything closes"));
    assert!(host.rows().keys().all(|key| key == "__wm__"));
    outcomes
}

fn check(window: fn() -> Windowed<Event>) {
    let fold = move || with_bounds(window().aggregate(|a| a.sum("sum", |e| e.v).count("n")));
    for seed in 0..20 {
        let asked = run(TestHost::new(fold), seed);
        let whole = run(TestHost::new(move || WholeShard(fold())), seed);
        assert_eq!(asked, whole, "seed {seed}");
        assert!(asked.iter().map(|outcome| outcome.emits.len()).sum::<usize>() > 5);
    }
}

fn events() -> foldmq_guest::Stream<Event, foldmq_guest::Keyed> {
    stream::<Event>().key_by(|e| e.k.clone().unwrap_or_default())
}

/// Sections 7 and 8 of the operators, for every kind of window and both kinds of time.
#[test]
fn touched_and_due_rows_suffice() {
    check(|| events().tumbling(secs(10)));
    check(|| events().tumbling(secs(10)).grace(secs(3)).event_time(|e| e.ts));
    check(|| events().sliding(secs(20), secs(5)).event_time(|e| e.ts).allowed_lateness(secs(4)));
    check(|| events().cron(Cron::Minute).event_time(|e| e.ts).on_late(Late::Include));
    check(|| events().session(secs(5)).grace(secs(2)));
    check(|| events().session(secs(3)).event_time(|e| e.ts));
}
