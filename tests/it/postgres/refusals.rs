//! What is refused, and whether the text helps.

use std::fs;

use foldmq::postgres::{Error, Options, Search};

use super::{connect, folder, refusal, start};

#[tokio::test]
async fn second_broker_on_one_folder_is_refused() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    let error = refusal(Options::new(folder.path())).await;
    assert!(matches!(error, Error::Locked { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    assert!(text.contains(&folder.path().display().to_string()), "{text}");
    connect(&cluster).await;
    cluster.stop().await.expect("stops in order");
    start(folder.path()).await.stop().await.expect("stops in order");
}

#[tokio::test]
async fn folder_of_another_major_version_is_refused() {
    let folder = folder();
    let cluster = start(folder.path()).await;
    let description = cluster.description();
    cluster.stop().await.expect("stops in order");
    fs::write(folder.path().join("data/PG_VERSION"), "13\n").expect("a place for the file");
    let text = refusal(Options::new(folder.path())).await.to_string();
    let version = description.split_whitespace().nth(2).expect("has the version");
    assert!(text.contains("made by PostgreSQL 13"), "{text}");
    // The fetched build is not listed for a version that it could not open.
    assert!(description.contains("(fetched)") || text.contains(version), "{text}");
}

#[tokio::test]
async fn folder_with_foreign_content_is_left_alone() {
    let folder = folder();
    fs::create_dir(folder.path().join("data")).expect("own folder");
    fs::write(folder.path().join("data/letter.txt"), "dear").expect("own folder");
    let error = refusal(Options::new(folder.path())).await;
    assert!(matches!(error, Error::NotACluster { .. }), "{error:?}");
    assert_eq!(fs::read(folder.path().join("data/letter.txt")).expect("still there"), b"dear");
}

#[tokio::test]
async fn error_without_binaries_lists_places_and_the_way_out() {
    let folder = folder();
    let empty = folder.path().join("empty-*/bin").display().to_string();
    let client_only = folder.path().join("client/bin");
    fs::create_dir_all(&client_only).expect("own folder");
    fs::write(client_only.join("postgres"), "").expect("own folder");
    let patterns = [empty.clone(), client_only.display().to_string()];
    let options = Options {
        search: Search::only(patterns.clone()),
        ..Options::new(folder.path().join("root"))
    };
    let error = refusal(options.clone()).await;
    assert!(matches!(error, Error::NoBinaries { .. }), "{error:?}");
    let text = error.to_string();
    for part in [&empty, &patterns[1], "no initdb", "PATH", "install", "--database-url"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    let named = Options { bin_dir: Some(client_only.clone()), ..options };
    let error = refusal(named).await;
    assert!(matches!(error, Error::BadBinDir { .. }), "{error:?}");
    assert!(error.to_string().contains(&patterns[1]), "{error}");
}

#[tokio::test]
async fn failed_start_quotes_the_log() {
    let folder = folder();
    start(folder.path()).await.stop().await.expect("stops in order");
    fs::write(folder.path().join("data/global/pg_control"), [0; 8192]).expect("own folder");
    let error = refusal(Options::new(folder.path())).await;
    assert!(matches!(error, Error::Ended { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("FATAL") && text.contains("postgres.log"), "{text}");
}
