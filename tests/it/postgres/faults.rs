//! Killed servers, orphans, stale files, and starts that were given up.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use foldmq::postgres::{Error, Options, PrivateCluster};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use tokio::time::timeout;

use super::{
    check_row, folder, insert_row, is_running, server_pid, start, try_connect, wait_until,
};

/// A program that runs as the owner of the data folder.
fn as_owner(root: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let owner = fs::metadata(root.join("data")).expect("made by an earlier start");
    let mut command = Command::new(program);
    command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null());
    if geteuid().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command
}

/// A child that does not outlive its test.
struct Guarded(Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _already_seen = self.0.wait();
    }
}

/// Starts a server as an earlier broker would have left it, and waits until it is ready.
#[cfg(target_os = "linux")]
async fn orphan(cluster: PrivateCluster) -> (Guarded, i32) {
    let root = cluster.data_dir().to_owned();
    let exe = fs::read_link(format!("/proc/{}/exe", server_pid(&cluster))).expect("has a program");
    cluster.stop().await.expect("stops");
    let mut command = as_owner(&root, exe);
    command
        .arg("-D")
        .arg(root.join("data"))
        .args(["-c", "listen_addresses=", "-c"])
        .arg(format!("unix_socket_directories={}", root.join("socket").display()));
    let child = Guarded(command.spawn().expect("the server program runs"));
    let pid_file = root.join("data/postmaster.pid");
    wait_until("the orphan is ready", async || {
        fs::read_to_string(&pid_file).is_ok_and(|text| text.contains("ready"))
    })
    .await;
    let pid = i32::try_from(child.0.id()).expect("pids are small");
    (child, pid)
}

#[tokio::test]
async fn killed_server_comes_back_with_its_rows() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    insert_row(&cluster).await;
    for _ in 0..2 {
        let pid = server_pid(&cluster);
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("own server");
        wait_until("another server answers", async || {
            let other = cluster.server_pid().and_then(|pid| i32::try_from(pid).ok());
            other.is_some_and(|other| other != pid) && try_connect(&cluster.config()).await.is_ok()
        })
        .await;
        check_row(&cluster).await;
    }
    let pid = server_pid(&cluster);
    cluster.stop().await.expect("stops in order");
    assert!(!is_running(pid));
}

#[tokio::test]
async fn stale_pid_file_with_a_reused_number_is_no_hindrance() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    insert_row(&cluster).await;
    let root = cluster.data_dir().to_owned();
    cluster.stop().await.expect("stops in order");
    let foreign = Guarded(as_owner(&root, "sleep").arg("600").spawn().expect("sleep is there"));
    let text = format!("{}\n{}\n", foreign.0.id(), root.join("data").display());
    fs::write(root.join("data/postmaster.pid"), &text).expect("a place for the file");
    fs::write(root.join("socket/.s.PGSQL.5432.lock"), &text).expect("a place for the file");
    let cluster = start(&root).await;
    check_row(&cluster).await;
    assert!(is_running(foreign.0.id().try_into().expect("pids are small")), "was not ours to end");
    cluster.stop().await.expect("stops in order");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn orphan_of_an_earlier_broker_is_replaced() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    insert_row(&cluster).await;
    let (_orphan, pid) = orphan(cluster).await;
    let cluster = start(folder.path()).await;
    assert!(!is_running(pid));
    check_row(&cluster).await;

    // And one that is already on its way out, as after the death of its broker.
    let (_orphan, pid) = orphan(cluster).await;
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("own server");
    let cluster = start(folder.path()).await;
    assert!(!is_running(pid));
    check_row(&cluster).await;

    // And one that was killed without a chance to clean up.
    let (_orphan, pid) = orphan(cluster).await;
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("own server");
    let cluster = start(folder.path()).await;
    check_row(&cluster).await;
    cluster.stop().await.expect("stops in order");
}

#[tokio::test]
async fn interrupted_first_start_leaves_nothing_in_the_way() {
    let folder = folder();
    let unfinished = folder.path().join("init-before");
    fs::create_dir_all(unfinished.join("base")).expect("own folder");
    fs::create_dir(folder.path().join("data")).expect("own folder");
    // Given up by its caller in the middle of the work.
    let given_up = PrivateCluster::start(Options::new(folder.path()));
    timeout(Duration::from_millis(300), given_up).await.expect_err("initdb takes longer");
    let mut cluster = None;
    wait_until("the folder is free again", async || {
        cluster = match PrivateCluster::start(Options::new(folder.path())).await {
            Err(Error::Locked { .. }) => None,
            result => Some(result.expect("starts once it is free")),
        };
        cluster.is_some()
    })
    .await;
    assert!(!unfinished.exists());
    insert_row(&cluster.expect("started above")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_cluster_is_stopped() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    let pid = server_pid(&cluster);
    drop(cluster);
    assert!(!is_running(pid));
    assert!(!folder.path().join("data/postmaster.pid").exists());
}
