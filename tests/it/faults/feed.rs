//! The main job while connections break at random moments.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::{REQUEST_MAX, STATEMENT, World};
use crate::support::{Client, eventually, flights, guest, seeded, tell};

const FAULTS: usize = 40;

/// Statements whose answers are lost.
const CALLS: [&str; 5] = ["cycles_v1", "log_push_many_v1", "log_claim_v1", "shards", "notify"];

/// One fault at a random place.
async fn harm(world: &World, random: &mut StdRng) {
    match random.random_range(0..10) {
        0 => world.proxy.cut(),
        1 => {
            let sql = world.server.database.sql().await;
            let kill = "select pg_terminate_backend(pid) from pg_stat_activity
                         where datname = current_database() and pid <> pg_backend_pid()";
            sql.execute(kill, &[]).await.expect("backends end");
        }
        2 => {
            world.proxy.close(true);
            tokio::time::sleep(Duration::from_millis(random.random_range(20..400))).await;
            world.proxy.close(false);
        }
        3 => {
            world.proxy.stall(true);
            tokio::time::sleep(Duration::from_millis(random.random_range(20..800))).await;
            world.proxy.stall(false);
        }
        _ => world.proxy.lose_answer(CALLS[random.random_range(0..CALLS.len())]),
    }
}

/// Pushes a chunk until all of it is stored; no request may hang.
async fn push(client: &Client, items: &[Value]) {
    let body = json!({"items": items}).to_string();
    eventually("a chunk is stored", async || {
        let request = client.request(reqwest::Method::POST, "/api/v1/push").body(body.clone());
        let asked = Instant::now();
        let answer = client.try_send(request).await.expect("an answer");
        assert!(asked.elapsed() < REQUEST_MAX, "a push took {:?}", asked.elapsed());
        let stored = |item: &Value| item["status"] == "queued" || item["status"] == "duplicate";
        (answer.status == 201 && answer.body.as_array()?.iter().all(stored)).then_some(())
    })
    .await;
}

/// FB-32: connections that are cut, killed, refused, stalled, and calls whose answers are lost, at
/// random moments: every window is exact, once, and the broker recovers by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_feed_is_exact_whatever_its_connections_do() {
    let mut random = seeded();
    let world = World::start().await;
    guest::host_flights(&world.client, "hourly").await;
    let items = flights::items();
    let chunks: Vec<_> = items.chunks(100).collect();
    let harmed = AtomicUsize::new(0);
    let feed = async {
        for (i, chunk) in chunks.iter().enumerate() {
            // The feed does not end before the last fault.
            let due = i * (FAULTS + 1) / chunks.len();
            eventually("the faults keep up", async || {
                (harmed.load(Ordering::SeqCst) >= due.saturating_sub(1)).then_some(())
            })
            .await;
            push(&world.client, chunk).await;
        }
    };
    let faults = async {
        for _ in 0..FAULTS {
            tokio::time::sleep(Duration::from_millis(random.random_range(20..250))).await;
            harm(&world, &mut random).await;
            harmed.fetch_add(1, Ordering::SeqCst);
        }
        // Long enough for calls to be given up while their statements still wait.
        world.proxy.stall(true);
        tokio::time::sleep(STATEMENT + Duration::from_secs(3)).await;
        world.proxy.stall(false);
    };
    tokio::join!(feed, faults);
    tell(&format!("answers lost: {}", world.proxy.lost()));
    assert!(world.proxy.lost() > 5, "the proxy reads the protocol");
    let status = flights::check(&world.client, "hourly").await;
    assert_eq!(status["messages"], 27_004, "{status}");
    assert_eq!(status["emits"], 1_763, "{status}");
    world.stop().await;
}
