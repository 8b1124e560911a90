//! What tests stand on: databases, servers, a client, guests.

pub(crate) mod client;
pub(crate) mod database;
pub(crate) mod flights;
pub(crate) mod guest;
pub(crate) mod process;
pub(crate) mod server;

pub(crate) use client::{Answer, Client};
pub(crate) use database::Database;
pub(crate) use server::TestServer;

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};

/// Longest wait for a condition.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `probe` gives something; fails with `what` after [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The randomness of a test, from a seed that is printed; `FOLDMQ_SEED` replays it.
pub(crate) fn seeded() -> rand::rngs::StdRng {
    let seed = std::env::var("FOLDMQ_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| rand::rng().random());
    tell(&format!("FOLDMQ_SEED={seed}"));
    rand::rngs::StdRng::seed_from_u64(seed)
}

/// Prints what a failed run must be replayed with, and figures that no assertion bounds closely.
#[expect(clippy::print_stdout, reason = "for whoever reads the output of a test")]
pub(crate) fn tell(text: &str) {
    println!("{text}");
}
