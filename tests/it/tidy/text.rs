//! Width of lines, and words that do not belong into the tree.

use super::{files, read, root, shown};

const WIDTH: usize = 100;

#[test]
fn lines_fit_the_width() {
    let mut faults = Vec::new();
    let folders = ["src", "tests", "guest-sdk", "examples"];
    for path in folders.iter().flat_map(|folder| files(folder, ".rs")) {
        for (at, line) in read(&path).lines().enumerate() {
            // A line that is one long literal cannot be broken.
            if line.chars().count() > WIDTH && !line.contains('"') {
                faults.push(format!("{}:{}", shown(&path), at + 1));
            }
        }
    }
    assert!(faults.is_empty(), "wider than {WIDTH}:\n{}", faults.join("\n"));
}

/// Comments speak of the present and of the project alone.
#[test]
fn comments_speak_of_the_present() {
    let banned = ["TODO", "FIXME", "HACK"];
    let mut faults = Vec::new();
    for path in ["src", "guest-sdk/src", "examples", "migrations"]
        .iter()
        .flat_map(|folder| [files(folder, ".rs"), files(folder, ".sql")].concat())
    {
        for (at, line) in read(&path).lines().enumerate() {
            if banned.iter().any(|word| line.contains(word)) {
                faults.push(format!("{}:{}: {}", shown(&path), at + 1, line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The command that CI runs is the one that the README gives.
#[test]
fn ci_runs_the_readmes_test_command() {
    let readme = read(&root().join("README.md"));
    let ci = read(&root().join(".ci/run"));
    let command = "rustup target add wasm32-unknown-unknown && cargo test --workspace";
    assert!(readme.contains(command) && ci.contains(command));
    assert!(readme.contains("cargo run --release -- demo"));
}
