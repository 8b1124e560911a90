//! The program from outside: commands, exit codes, what they print.

use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::support::{TestServer, guest};

fn foldmq(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldmq"));
    command.args(args).env_remove("DATABASE_URL").env("RUST_LOG", "off").stdin(Stdio::null());
    command
}

fn printed(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// The demo folds the feed from nothing, checks its windows and ends well; a second run on the same
/// store too, and a run in another folder at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_runs_twice_and_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("flights.wasm");
    std::fs::write(&module, guest::flights()).expect("a file");
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let run = async |data: &std::path::Path| {
        let (module, data) = (module.display().to_string(), data.display().to_string());
        foldmq(&["demo", "--data-dir", &data, "--module", &module]).output().await.expect("runs")
    };
    let (first, other) = tokio::join!(run(&a), run(&b));
    let second = run(&a).await;
    for output in [first, other, second] {
        let text = printed(&output);
        assert!(output.status.success(), "{text}");
        for words in ["27,004", "1,763", "each once", "lag            0", "guest-sdk/README.md"] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
    }
}

/// An outside worker written with nothing but curl does one whole round.
#[tokio::test(flavor = "multi_thread")]
async fn the_curl_worker_does_a_whole_round() {
    let server = TestServer::start().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/curl-worker/worker.sh");
    for round in 0..2 {
        let output = Command::new("sh")
            .arg(script)
            .env("FOLDMQ_URL", server.server.url())
            .output()
            .await
            .expect("sh runs");
        assert!(output.status.success(), "round {round}: {}", printed(&output));
    }
    server.stop().await;
}

/// A database that cannot be reached is an error, never an empty store.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_database_is_an_error() {
    let url = "postgres://me:secret@127.0.0.1:1/nowhere";
    let output =
        foldmq(&["serve", "--listen", "127.0.0.1:0", "--database-url", url]).output().await;
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(2));
    let text = printed(&output);
    assert!(text.contains("127.0.0.1:1/nowhere"), "{text}");
    assert!(text.contains("Not falling back"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// Without authentication only loopback addresses are served, unless somebody says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_address_is_refused() {
    let output = foldmq(&["serve", "--listen", "0.0.0.0:0"]).output().await.expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("--allow-open"), "{}", printed(&output));
}

/// Help texts carry examples; an unknown flag is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn help_texts_have_examples() {
    let help = foldmq(&["serve", "--help"]).output().await.expect("runs");
    let text = printed(&help);
    for words in ["--listen", "FOLDMQ_LISTEN", "--data-dir", "DATABASE_URL", "Examples:"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let unknown = foldmq(&["serve", "--lissten", "x"]).output().await.expect("runs");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(printed(&unknown).contains("--lissten"));
}
