//! The main job: a month of flights through a fold that the broker runs, exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldmq::postgres::Options;
use foldmq::server::Store;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;

use crate::support::process::{BrokerProcess, free_port};
use crate::support::{Database, TestServer, eventually, flights, guest, seeded};

/// streams W3: the windows on the sink equal the expected ones, each once, through HTTP alone. A
/// batch out of offset order would count records as late.
#[tokio::test(flavor = "multi_thread")]
async fn the_feed_gives_exactly_its_windows() {
    let server = TestServer::start().await;
    let client = server.client();
    guest::host_flights(&client, "hourly").await;
    for chunk in flights::items().chunks(500) {
        flights::push_surely(&client, chunk).await;
    }
    let status = flights::check(&client, "hourly").await;
    assert_eq!(status["messages"], 27_004, "{status}");
    assert_eq!(status["emits"], 1_763, "{status}");
    server.stop().await;
}

/// streams W4: two brokers on one database share the work and close each window once.
#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_on_one_database_close_each_window_once() {
    let database = Arc::new(Database::new().await);
    let a = TestServer::on(Arc::clone(&database)).await;
    let b = TestServer::on(database).await;
    let clients = [a.client(), b.client()];
    guest::host_flights(&clients[0], "hourly").await;
    for (i, chunk) in flights::items().chunks(200).enumerate() {
        flights::push_surely(&clients[i % 2], chunk).await;
    }
    flights::check(&clients[0], "hourly").await;
    a.stop().await;
    b.stop().await;
}

/// SIGKILL of the broker and its private store, ten times at random moments of the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_loses_nothing_and_counts_nothing_twice() {
    const KILLS: usize = 10;
    let mut random = seeded();
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().join("data").display().to_string();
    let port = free_port();
    let args = ["--data-dir", data_dir.as_str()];
    let mut broker = BrokerProcess::start(port, &args).await;
    let client = broker.client.clone();
    guest::host_flights(&client, "hourly").await;

    let kills = AtomicUsize::new(0);
    let items = flights::items();
    let chunks: Vec<_> = items.chunks(100).collect();
    let push = async {
        for (i, chunk) in chunks.iter().enumerate() {
            // The feed does not end before the last kill.
            let due = i * (KILLS + 1) / chunks.len();
            eventually("the kills keep up", async || {
                (kills.load(Ordering::SeqCst) >= due.saturating_sub(1)).then_some(())
            })
            .await;
            flights::push_surely(&client, chunk).await;
        }
    };
    let kill = async {
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(random.random_range(20..400))).await;
            broker.kill();
            kills.fetch_add(1, Ordering::SeqCst);
            broker = BrokerProcess::start(port, &args).await;
        }
    };
    tokio::join!(push, kill);
    flights::check(&client, "hourly").await;
    assert_eq!(broker.terminate().await, Some(0), "SIGTERM ends the broker in order");
}

/// streams W7: PostgreSQL stops and starts again under the broker, twice in order and
/// twice without.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_may_stop_and_come_back_under_the_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::Private(Box::new(Options::new(folder.path().join("data"))));
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| config.store = store).await;
    let client = server.client();
    guest::host_flights(&client, "hourly").await;
    let items = flights::items();
    let chunks: Vec<_> = items.chunks(300).collect();
    let signals = [Signal::SIGINT, Signal::SIGKILL, Signal::SIGINT, Signal::SIGKILL];
    let every = chunks.len() / (signals.len() + 1);
    for (i, chunk) in chunks.iter().enumerate() {
        flights::push_surely(&client, chunk).await;
        if let Some(signal) = (i % every == 0).then(|| signals.get(i / every)).flatten() {
            let pid = eventually("the store runs", async || {
                server.server.cluster().expect("a private store").server_pid()
            })
            .await;
            kill(Pid::from_raw(i32::try_from(pid).expect("a process id")), *signal)
                .expect("the store runs");
        }
    }
    flights::check(&client, "hourly").await;
    server.stop().await;
}
