//! Modules: upload, refusal, listing, deletion.

use serde_json::json;

use crate::support::{Answer, TestServer, eventually, guest};

const MODULES: &str = "/streams/v1/modules";

/// An upload is named by its SHA-256, stored once, listed, and deleted when nothing runs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_module_is_stored_once_and_deleted_when_unused() {
    let server = TestServer::start().await;
    let client = server.client();
    let first = client.post_bytes(MODULES, guest::probe()).await.expect(201);
    let hash = first["module"].as_str().expect("a hash").to_owned();
    assert_eq!(hash.len(), 64);
    assert_eq!(first["name"], "probe", "{first}");
    client.post_bytes(MODULES, guest::probe()).await.expect(200);
    let list = client.get(MODULES).await.expect(200);
    assert_eq!(list["modules"].as_array().expect("a list").len(), 1, "{list}");
    let body = json!({"name": "user", "source_queue": "q", "module": hash});
    client.post("/streams/v1/queries", &body).await.expect(200);
    let used = client.delete(&format!("{MODULES}/{hash}")).await.expect(400);
    assert!(used["error"].as_str().expect("text").contains("user"), "{used}");
    client.delete("/streams/v1/queries/user").await.expect(200);
    client.delete(&format!("{MODULES}/{hash}")).await.expect(200);
    assert_eq!(client.get(&format!("{MODULES}/{hash}")).await.status, 404);
    assert_eq!(client.delete(&format!("{MODULES}/{hash}")).await.status, 404);
    server.stop().await;
}

/// FB-05: what is no WebAssembly at all is refused with what it is and at which byte.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_module_is_refused_by_name() {
    let server = TestServer::start().await;
    let client = server.client();
    let good = guest::probe();
    let cases = [
        (b"[package]\nname = \"x\"\n".to_vec(), "byte 0"),
        (Vec::new(), "0 bytes"),
        (good[..good.len() / 2].to_vec(), "byte"),
        (vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0], "gzip"),
    ];
    for (bytes, words) in cases {
        let refused = client.post_bytes(MODULES, bytes).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.body["error"].as_str().expect("text").contains(words), "{}", refused.text);
    }
    let list = client.get(MODULES).await.expect(200);
    assert_eq!(list["modules"], json!([]));
    server.stop().await;
}

/// FB-06: an unknown import is refused at upload, named.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_import_is_refused_at_upload() {
    let server = TestServer::start().await;
    let client = server.client();
    let wat =
        r#"(module (import "env" "read_clock" (func (result i64))) (memory (export "memory") 1))"#;
    let bytes = wat::parse_str(wat).expect("text");
    let refused = client.post_bytes(MODULES, bytes).await;
    assert_eq!(refused.status, 422, "{}", refused.text);
    assert!(refused.text.contains("read_clock"), "{}", refused.text);
    server.stop().await;
}

/// FB-04: a body above the limit is refused as soon as it is passed, whatever its length claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_huge_upload_is_refused_early() {
    let server = TestServer::start().await;
    let client = server.client();
    // The connection may be closed before the client has sent everything.
    let refused = |sent: reqwest::Result<Answer>| match sent {
        Ok(answer) => {
            assert_eq!(answer.status, 413, "{}", answer.text);
            let error = answer.body["error"].as_str().expect("text");
            assert!(error.contains("limit"), "{error}");
        }
        Err(cause) => assert!(cause.is_request() || cause.is_body(), "{cause}"),
    };
    let told = client.request(reqwest::Method::POST, MODULES).body(vec![0; 40 << 20]);
    refused(client.try_send(told).await);
    // Chunked: no length is told at all.
    let chunks =
        futures_util::stream::iter((0..400).map(|_| Ok::<_, std::io::Error>(vec![0; 1 << 17])));
    let body = reqwest::Body::wrap_stream(chunks);
    let request = client.request(reqwest::Method::POST, MODULES).body(body);
    refused(client.try_send(request).await);
    client.get("/health").await.expect(200);
    server.stop().await;
}

/// FB-07: after a new registration the next cycle runs the new module; the old one is still there.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_module_runs_from_the_next_cycle_on() {
    let server = TestServer::start().await;
    let client = server.client();
    let old = guest::host_flights(&client, "deploy").await;
    let new = guest::upload(&client, guest::probe()).await;
    let body = json!({"name": "deploy", "source_queue": "flights", "module": new, "reset": true,
                      "params": {"window_ms": 1000, "event_time": true}});
    client.post("/streams/v1/queries", &body).await.expect(200);
    let status = client.status("deploy").await;
    assert_eq!(status["module"], new.as_str(), "{status}");
    client
        .push("flights", "p", &[json!({"key": "k", "at": 1}), json!({"key": "k", "at": 9_000})])
        .await;
    eventually("the new module emits", async || {
        (client.pop("probe.out", "subscriptionMode=all").await.len() == 1).then_some(())
    })
    .await;
    client.get(&format!("{MODULES}/{old}")).await.expect(200);
    server.stop().await;
}
