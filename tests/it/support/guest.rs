//! Guests: the example fold, built once a run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;

use super::Client;

const TARGET: &str = "wasm32-unknown-unknown";

/// The bytes of the example fold, built by the very command that the README gives.
pub(crate) fn flights() -> Vec<u8> {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cargo = std::env::var("CARGO").unwrap_or_else(|_unset| "cargo".to_owned());
        let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "flights", "--release", "--target", TARGET])
            .current_dir(root)
            .env("CARGO_TARGET_DIR", &target_dir)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the example fold builds (rustup target add {TARGET}?)");
        target_dir.join(TARGET).join("release/flights.wasm")
    });
    std::fs::read(path).expect("the example fold")
}

/// Uploads a module; gives its hash.
pub(crate) async fn upload(client: &Client, bytes: Vec<u8>) -> String {
    let answer = client.post_bytes("/streams/v1/modules", bytes).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text);
    answer.body["module"].as_str().expect("a hash").to_owned()
}

/// Uploads the example fold and registers it.
pub(crate) async fn host_flights(client: &Client, query: &str) -> String {
    let module = upload(client, flights()).await;
    let body = json!({"name": query, "source_queue": "flights", "module": module});
    client.post("/streams/v1/queries", &body).await.expect(200);
    module
}
