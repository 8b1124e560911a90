//! The life of a hosted query: registration, pause, reset, start, deletion.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Client, Database, TestServer, eventually, guest};

const QUERIES: &str = "/streams/v1/queries";

fn message(n: i64) -> Value {
    json!({"key": "k", "n": n})
}

fn open() -> Value {
    json!({"params": {"window_ms": 3_600_000, "event_time": true}})
}

async fn folded(client: &Client, query: &str, n: i64) -> Value {
    eventually("messages are folded", async || {
        let status = client.status(query).await;
        (status["messages"] == n && status["lag_messages"] == 0).then_some(status)
    })
    .await
}

/// FB-69: pause keeps the exact place, resume goes on from it.
#[tokio::test(flavor = "multi_thread")]
async fn pause_and_resume_keep_the_place() {
    let server = TestServer::start().await;
    let client = server.client();
    guest::host_probe(&client, "pause", "q", open()).await;
    client.push("q", "p", &[message(1)]).await;
    folded(&client, "pause", 1).await;
    client.post(&format!("{QUERIES}/pause/pause"), &json!({})).await.expect(200);
    client.push("q", "p", &(0..100).map(message).collect::<Vec<_>>()).await;
    let status = client.status("pause").await;
    assert_eq!(status["state"], "paused", "{status}");
    assert_eq!(status["lag_messages"], 100, "{status}");
    client.post(&format!("{QUERIES}/pause/resume"), &json!({})).await.expect(200);
    let status = folded(&client, "pause", 101).await;
    assert_eq!(status["state"], "running");
    // FB-95: lag reads 0 when all is done.
    assert_eq!(status["lag_messages"], 0);
    server.stop().await;
}

/// streams W2, Q22, Q26: an outside worker of the same name gets the 409, and the reverse; a reset
/// with another module or other params starts from empty state at the unchanged cursor.
#[tokio::test(flavor = "multi_thread")]
async fn shapes_of_one_name_do_not_mix() {
    let server = TestServer::start().await;
    let client = server.client();
    let module = guest::host_probe(&client, "shape", "q", open()).await;
    client.push("q", "p", &[message(5)]).await;
    folded(&client, "shape", 1).await;
    let worker = json!({"name": "shape", "source_queue": "q", "config_hash": "chain"});
    let conflict = client.post(QUERIES, &worker).await.expect(409);
    assert!(conflict["error"].as_str().expect("text").contains("config_hash mismatch"));

    let mut other = json!({"name": "shape", "source_queue": "q", "module": module,
                           "params": {"window_ms": 60_000, "event_time": true}});
    let refused = client.post(QUERIES, &other).await.expect(409);
    assert_eq!(refused["success"], false, "{refused}");
    other["reset"] = json!(true);
    let reset = client.post(QUERIES, &other).await.expect(200);
    assert_eq!((&reset["reset"], &reset["fresh"]), (&json!(true), &json!(false)), "{reset}");
    assert_ne!(reset["config_hash"], module.as_str(), "params are part of the hash");
    let status = client.status("shape").await;
    assert_eq!(status["state_rows"], 0, "{status}");
    client.push("q", "p", &[message(7)]).await;
    folded(&client, "shape", 2).await;
    let sql = server.database.sql().await;
    let row = sql
        .query_one(
            "select (value->'acc'->>'sum')::int from queen_streams.state where key <> '__wm__'",
            &[],
        )
        .await
        .expect("one window");
    assert_eq!(row.get::<_, i32>(0), 7, "the message before the reset is not folded again");
    server.stop().await;
}

/// Registration: the hash without params is the module's; a supplied one must be right; every
/// refusal names field, limit and value, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_is_checked_field_by_field() {
    let server = TestServer::start().await;
    let client = server.client();
    let module = guest::upload(&client, guest::probe()).await;
    let base = json!({"name": "r", "source_queue": "q", "module": module});
    let cases = [
        (json!({"config_hash": "beef"}), "config_hash"),
        (json!({"batch": 0}), "batch"),
        (json!({"batch": 10_001}), "10000"),
        (json!({"on_poison": "ignore"}), "on_poison"),
        (json!({"start": "yesterday"}), "start"),
        (json!({"params": {"window_ms": 0}}), "window_ms must be above 0"),
        (json!({"params": {"window_ms": "x"}}), "expected u64"),
        (json!({"module": "0".repeat(64)}), "not uploaded"),
        (json!({"module": "xyz"}), "module"),
        (json!({"source_queue": ""}), "source_queue"),
    ];
    for (change, words) in cases {
        let mut body = base.clone();
        for (name, value) in change.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let refused = client.post(QUERIES, &body).await;
        assert_eq!(refused.status, 400, "{change}: {}", refused.text);
        let error = refused.body["error"].as_str().expect("text");
        assert!(error.contains(words), "{change}: {error}");
    }
    assert_eq!(client.get(&format!("{QUERIES}/r")).await.status, 404);
    let mut good = base.clone();
    good["config_hash"] = json!(module);
    let first = client.post(QUERIES, &good).await.expect(200);
    assert_eq!((&first["fresh"], &first["config_hash"]), (&json!(true), &json!(module)));
    let again = client.post(QUERIES, &base).await.expect(200);
    assert_eq!((&again["fresh"], &again["query_id"]), (&json!(false), &first["query_id"]));
    server.stop().await;
}

/// FB-68: a query starts at the beginning, at the end, or at an instant.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_starts_where_it_is_told() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("q", "p", &[message(1), message(2)]).await;
    let sql = server.database.sql().await;
    let row = sql
        .query_one(
            "select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
            &[],
        )
        .await
        .expect("the clock");
    let between: String = row.get(0);
    client.push("q", "p", &[message(4)]).await;
    for (name, start) in [("all", "earliest"), ("end", "latest"), ("mid", between.as_str())] {
        let mut more = open();
        more["start"] = json!(start);
        guest::host_probe(&client, name, "q", more).await;
    }
    client.push("q", "p", &[message(8)]).await;
    folded(&client, "all", 4).await;
    folded(&client, "mid", 2).await;
    folded(&client, "end", 1).await;
    server.stop().await;
}

/// A query may be registered before its source queue exists, and outlives the queue's deletion.
#[tokio::test(flavor = "multi_thread")]
async fn the_source_queue_may_come_later_and_go() {
    let server = TestServer::start().await;
    let client = server.client();
    let mut more = open();
    more["start"] = json!("latest");
    guest::host_probe(&client, "early", "later", more).await;
    client.push("later", "p", &[message(1)]).await;
    folded(&client, "early", 1).await;
    client.delete("/api/v1/resources/queues/later").await.expect(200);
    client.push("later", "p", &[message(2), message(3)]).await;
    eventually("the new queue is folded", async || {
        let status = client.status("early").await;
        (status["messages"] == 2 && status["lag_messages"] == 0).then_some(())
    })
    .await;
    server.stop().await;
}

/// Deletion removes registration, state and cursors: the same name starts from the beginning.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_query_leaves_nothing_behind() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("q", "p", &[message(1), message(2)]).await;
    guest::host_probe(&client, "gone", "q", open()).await;
    folded(&client, "gone", 2).await;
    client.delete(&format!("{QUERIES}/gone")).await.expect(200);
    assert_eq!(client.get(&format!("{QUERIES}/gone")).await.status, 404);
    let sql = server.database.sql().await;
    for table in ["foldmq.state", "foldmq.shards", "queen.log_consumers", "queen.log_groups"] {
        let row =
            sql.query_one(&format!("select count(*) from {table}"), &[]).await.expect("count");
        assert_eq!(row.get::<_, i64>(0), 0, "{table}");
    }
    guest::host_probe(&client, "gone", "q", open()).await;
    folded(&client, "gone", 2).await;
    server.stop().await;
}

/// A pause, a resume and a registration on one broker reach the others.
#[tokio::test(flavor = "multi_thread")]
async fn brokers_learn_of_changes_from_each_other() {
    let database = Arc::new(Database::new().await);
    let a = TestServer::on(Arc::clone(&database)).await;
    let b = TestServer::on(database).await;
    guest::host_probe(&a.client(), "shared", "q", open()).await;
    a.client().post(&format!("{QUERIES}/shared/pause"), &json!({})).await.expect(200);
    b.client().push("q", "p", &[message(1)]).await;
    b.client().post(&format!("{QUERIES}/shared/resume"), &json!({})).await.expect(200);
    a.stop().await;
    folded(&b.client(), "shared", 1).await;
    b.stop().await;
}
