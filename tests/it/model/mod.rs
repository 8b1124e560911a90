//! Random schedules against a model: after every step the broker holds what the model holds.
//!
//! A schedule is a function of its seed alone. `FOLDMQ_SEED` replays one, `FOLDMQ_SCHEDULES`
//! says how many are played (from that seed on, else from a random one).

mod drive;
mod fold;
mod generate;
mod judge;
mod look;
#[expect(clippy::module_inception, reason = "the model of the model test")]
mod model;
mod picture;
mod request;
mod settle;
mod wire;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use drive::Driver;
use rand::Rng;
use world::{Sql, Stats, World};

/// Schedules of a run.
const SCHEDULES: u64 = 1_000;
/// Schedules at the same time.
const SLOTS: usize = 12;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// What the slots share.
struct Run {
    world: World,
    base: u64,
    n: u64,
    next: AtomicU64,
    failed: AtomicBool,
}

/// Plays schedules until none is left; stops at the first one that fails.
async fn slot(run: Arc<Run>) -> Result<Stats, String> {
    let sql = Sql::new(&run.world.database).await;
    let mut stats = Stats::default();
    loop {
        let schedule = run.next.fetch_add(1, Ordering::Relaxed);
        if schedule >= run.n || run.failed.load(Ordering::Relaxed) {
            return Ok(stats);
        }
        let seed = run.base.wrapping_add(schedule);
        let mut driver = Driver::new(&run.world, &sql, seed, &schedule.to_string()).await;
        let played = std::panic::AssertUnwindSafe(driver.play());
        let verdict = futures_util::FutureExt::catch_unwind(played).await;
        let fault = match verdict {
            Ok(Ok(())) => None,
            Ok(Err(fault)) => Some(fault),
            Err(_panic) => Some("a check of the test itself failed, see above".to_owned()),
        };
        if let Some(fault) = fault {
            run.failed.store(true, Ordering::Relaxed);
            let steps = driver.played.join("\n  ");
            return Err(format!("FOLDMQ_SEED={seed} schedule={schedule}\n  {steps}\n{fault}"));
        }
        stats.merge(std::mem::take(&mut driver.stats));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_under_random_schedules_is_its_model_after_every_step() {
    let given = setting("FOLDMQ_SEED");
    let base = given.unwrap_or_else(|| u64::from(rand::rng().random::<u32>()) << 20);
    let usual = if given.is_some() { 1 } else { SCHEDULES };
    let n = setting("FOLDMQ_SCHEDULES").unwrap_or(usual);
    println!("FOLDMQ_SEED={base}, {n} schedules");
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let run = Arc::new(Run { world: World::start().await, base, n, next, failed });
    let slots: Vec<_> = (0..SLOTS).map(|_| tokio::spawn(slot(Arc::clone(&run)))).collect();
    let mut stats = Stats::default();
    let mut faults = Vec::new();
    for slot in slots {
        match slot.await.expect("failures are caught") {
            Ok(seen) => stats.merge(seen),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    for (what, times) in &stats.0 {
        println!("{times:6} {what}");
    }
    assert_eq!(stats.rare(n), [""; 0], "the generator reaches everything often");
    let run = Arc::into_inner(run).expect("every slot has ended");
    run.world.stop().await;
}
