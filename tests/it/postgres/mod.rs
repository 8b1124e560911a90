//! The private PostgreSQL server against real binaries, real processes and real signals.
//!
//! The tests run as root and as an ordinary user; what only root can try is skipped for others.

mod faults;
mod life;
mod refusals;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use foldmq::postgres::{Error, Options, PrivateCluster};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// A folder that every account may walk to.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("room for a temporary folder");
    open_to_walk(folder.path());
    folder
}

fn open_to_walk(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o711)).expect("own folder");
}

/// Polls until `done` holds; a test that waits in vain fails with `what`.
async fn wait_until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let poll = async {
        while !done().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(60), poll).await.unwrap_or_else(|_| panic!("never: {what}"));
}

async fn start(root: &Path) -> PrivateCluster {
    PrivateCluster::start(Options::new(root)).await.expect("the cluster starts")
}

async fn refusal(options: Options) -> Error {
    match PrivateCluster::start(options).await {
        Ok(cluster) => panic!("started {}", cluster.description()),
        Err(error) => error,
    }
}

async fn try_connect(config: &tokio_postgres::Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn connect(cluster: &PrivateCluster) -> Client {
    try_connect(&cluster.config()).await.expect("the server takes connections")
}

async fn text(client: &Client, query: &str) -> String {
    client.query_one(query, &[]).await.expect("the query works").get(0)
}

async fn insert_row(cluster: &PrivateCluster) {
    let client = connect(cluster).await;
    client
        .batch_execute("create table kept (name text not null); insert into kept values ('row')")
        .await
        .expect("the role may create tables");
}

async fn check_row(cluster: &PrivateCluster) {
    assert_eq!(text(&connect(cluster).await, "select name from kept").await, "row");
}

fn server_pid(cluster: &PrivateCluster) -> i32 {
    let pid = cluster.server_pid().expect("a server runs");
    pid.try_into().expect("pids are small")
}

/// Whether the process exists and is no zombie, which only waits for this test to look at it.
fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let state = if cfg!(target_os = "linux") {
        stat.ok().and_then(|text| text.rsplit(')').next().map(str::to_owned))
    } else {
        let told = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output();
        String::from_utf8(told.expect("ps is there").stdout).ok()
    };
    state.is_some_and(|state| !state.trim().is_empty() && !state.trim().starts_with('Z'))
}
