//! Start, stop, restart, and the account and place that the server runs in.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use foldmq::postgres::{Error, Options, PrivateCluster};
use nix::unistd::geteuid;

use super::{
    check_row, folder, insert_row, is_running, refusal, server_pid, start, text, try_connect,
};

#[tokio::test]
async fn data_and_safe_settings_survive_a_restart() {
    let folder = folder();
    let root = folder.path().join("new/root");
    let cluster = start(&root).await;
    let first = cluster.description();
    assert!(first.starts_with("private PostgreSQL ") && first.contains("(created in "), "{first}");
    assert!(first.contains(&root.display().to_string()), "{first}");
    insert_row(&cluster).await;
    let pid = server_pid(&cluster);
    cluster.stop().await.expect("stops in order");
    assert!(!is_running(pid));

    let cluster = start(&root).await;
    assert!(!cluster.description().contains("created"), "{}", cluster.description());
    check_row(&cluster).await;
    let url: tokio_postgres::Config = cluster.url().parse().expect("a URL that libpq understands");
    let client = try_connect(&url).await.expect("the URL leads to the server");
    for (setting, value) in [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("data_checksums", "on"),
        ("listen_addresses", ""),
        ("server_encoding", "UTF8"),
        ("timezone", "UTC"),
        ("shared_preload_libraries", "plpgsql"),
        ("max_connections", "100"),
    ] {
        assert_eq!(text(&client, &format!("show {setting}")).await, value, "{setting}");
    }
    let collation = "select datcollate::text from pg_database where datname = current_database()";
    assert_eq!(text(&client, collation).await, "C");
    let socket = cluster.data_dir().join("socket");
    assert_eq!(fs::metadata(socket).expect("made").mode() & 0o777, 0o700);
    cluster.stop().await.expect("stops in order");
}

#[tokio::test]
async fn long_folder_name_gets_a_short_socket() {
    let folder = folder();
    let root = folder.path().join("x".repeat(120));
    let cluster = start(&root).await;
    assert!(cluster.url().contains("host=/tmp/foldmq-"), "{}", cluster.url());
    insert_row(&cluster).await;
    check_row(&cluster).await;
    let config = cluster.config();
    cluster.stop().await.expect("stops in order");
    let tokio_postgres::config::Host::Unix(socket) = &config.get_hosts()[0] else {
        panic!("connects without a socket")
    };
    assert!(!socket.exists(), "a folder in a shared place is not left behind");
}

#[tokio::test]
async fn several_clusters_run_side_by_side() {
    let folders = [folder(), folder(), folder()];
    let [a, b, c] = &folders;
    let (a, b, c) = tokio::join!(start(a.path()), start(b.path()), start(c.path()));
    for cluster in [a, b, c] {
        insert_row(&cluster).await;
        check_row(&cluster).await;
        cluster.stop().await.expect("stops in order");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn root_steps_down_to_an_account_that_can_reach_the_folder() {
    if !geteuid().is_root() {
        return;
    }
    let owner = |path: PathBuf| fs::metadata(path).expect("exists").uid();
    let folder = folder();
    let root = folder.path().join("root");
    let options = Options { user: Some("nobody".to_owned()), ..Options::new(&root) };
    let cluster = PrivateCluster::start(options).await.expect("nobody can run it");
    assert_ne!(owner(format!("/proc/{}", server_pid(&cluster)).into()), 0);
    assert_ne!(owner(root.join("data")), 0);
    assert_eq!(owner(root.clone()), 0, "only what the server needs is given away");
    insert_row(&cluster).await;
    cluster.stop().await.expect("stops in order");

    // A number that no password file knows is good enough for a folder that is there.
    give_to(&root.join("data"), 4_000_001);
    let cluster = start(&root).await;
    assert_eq!(owner(format!("/proc/{}", server_pid(&cluster)).into()), 4_000_001);
    check_row(&cluster).await;
    cluster.stop().await.expect("stops in order");
    let options = Options { user: Some("nobody".to_owned()), ..Options::new(&root) };
    let error = refusal(options).await;
    assert!(matches!(error, Error::ForeignOwner { owner: 4_000_001, .. }), "{error:?}");

    let fresh = folder.path().join("fresh");
    let options = Options { user: Some("4000001".to_owned()), ..Options::new(&fresh) };
    let error = refusal(options).await;
    assert!(matches!(error, Error::NoPasswdEntry { uid: 4_000_001, .. }), "{error:?}");

    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("own folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("own folder");
    let error = refusal(Options::new(closed.join("root"))).await;
    assert!(matches!(&error, Error::Unreachable { folder, .. } if *folder == closed), "{error:?}");
    assert!(!closed.join("root").exists(), "a refusal leaves nothing behind");
}

fn give_to(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).expect("root may");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("root may") {
            give_to(&entry.expect("root may").path(), uid);
        }
    }
}
