//! Guests, built once a run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::Client;

const TARGET: &str = "wasm32-unknown-unknown";

/// Builds the guests once a run; gives the folder with the modules.
fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cargo = std::env::var("CARGO").unwrap_or_else(|_unset| "cargo".to_owned());
        let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
        let build =
            ["build", "--quiet", "-p", "flights", "-p", "probe", "--release", "--target", TARGET];
        let status = Command::new(cargo)
            .args(build)
            .current_dir(root)
            .env("CARGO_TARGET_DIR", &target_dir)
            .status()
            .expect("cargo runs");
        assert!(status.success(), "the guests build (rustup target add {TARGET}?)");
        target_dir.join(TARGET).join("release")
    })
}

/// The bytes of the example fold.
pub(crate) fn flights() -> Vec<u8> {
    std::fs::read(built().join("flights.wasm")).expect("the example fold")
}

/// The bytes of the fold that misbehaves on request (`tests/probe`).
pub(crate) fn probe() -> Vec<u8> {
    std::fs::read(built().join("probe.wasm")).expect("the probe fold")
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

/// Uploads the probe and registers it with params and further fields.
pub(crate) async fn host_probe(client: &Client, query: &str, source: &str, more: Value) -> String {
    let module = upload(client, probe()).await;
    let mut body = json!({"name": query, "source_queue": source, "module": module});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    client.post("/streams/v1/queries", &body).await.expect(200);
    module
}
