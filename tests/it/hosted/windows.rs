//! Windows: when they close, what they carry, what is left out.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::{Client, Database, TestServer, eventually, guest};

fn message(key: &str, n: i64) -> Value {
    json!({"key": key, "n": n})
}

fn at(key: &str, n: i64, ms: i64) -> Value {
    json!({"key": key, "n": n, "at": ms})
}

/// Takes messages off a sink until `count` came, and no more.
async fn take(client: &Client, queue: &str, count: usize) -> Vec<Value> {
    let mut taken = Vec::new();
    let query = "batch=100&partitions=16&autoAck=true&subscriptionMode=all&consumerGroup=t";
    eventually("windows arrive", async || {
        taken.extend(client.pop(queue, query).await);
        (taken.len() >= count).then_some(())
    })
    .await;
    assert_eq!(taken.len(), count, "{taken:?}");
    taken
}

fn instant(value: &Value) -> Timestamp {
    value.as_str().expect("text").parse().expect("an instant")
}

/// FB-56, FB-64: the final result of a window comes although no further message does, with the
/// window's start, end, key and count, and not before its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_processing_time_window_closes_without_traffic() {
    let server = TestServer::start().await;
    let client = server.client();
    guest::host_probe(&client, "quiet", "q", json!({"params": {"window_ms": 300}})).await;
    client.push("q", "p", &[message("a", 1)]).await;
    let window = take(&client, "probe.out", 1).await.remove(0);
    assert_eq!(window["data"]["key"], "a");
    assert_eq!(window["data"]["count"], 1);
    assert_eq!(window["partition"], "p", "the source partition's name by default");
    let end = instant(&window["data"]["window_end"]);
    assert!(instant(&window["data"]["window_start"]) < end);
    assert!(instant(&window["createdAt"]) >= end, "not before its end: {window}");
    let status = client.status("quiet").await;
    assert_eq!(status["state_rows"], 0, "{status}");
    server.stop().await;
}

/// FB-57, streams W5: a window that was open when the broker stopped closes after the
/// restart, once, although
/// its key never comes again.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_window_closes_after_a_restart() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::on(Arc::clone(&database)).await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 500, "grace_ms": 1500}});
    guest::host_probe(&client, "restart", "q", params).await;
    client.push("q", "p", &[message("a", 1), message("a", 2)]).await;
    eventually("the window is open", async || {
        (client.status("restart").await["state_rows"] == 1).then_some(())
    })
    .await;
    server.stop().await;
    let server = TestServer::on(database).await;
    let client = server.client();
    let window = take(&client, "probe.out", 1).await.remove(0);
    assert_eq!(window["data"]["sum"], 3);
    assert!(client.pop("probe.out", "consumerGroup=other&subscriptionMode=all").await.len() == 1);
    server.stop().await;
}

/// FB-59: a silent partition closes by its idle rule and does not hold another one back.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_partition_closes_by_the_idle_rule() {
    let server = TestServer::start().await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 1000, "event_time": true, "idle_ms": 700}});
    guest::host_probe(&client, "idle", "q", params).await;
    client.push("q", "silent", &[at("s", 1, 10_000)]).await;
    client.push("q", "busy", &[at("b", 1, 10_000), at("b", 1, 20_000)]).await;
    // The busy partition's first window closes by its own watermark.
    let windows = take(&client, "probe.out", 3).await;
    let first = &windows[0];
    assert_eq!(first["data"]["key"], "b", "{windows:?}");
    let keys: Vec<_> = windows.iter().map(|w| w["data"]["key"].as_str().expect("text")).collect();
    assert!(keys.contains(&"s"), "the silent one closed too: {keys:?}");
    server.stop().await;
}

/// FB-60: a record older than the watermark is left out, and counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_record_is_counted() {
    let server = TestServer::start().await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 1000, "event_time": true}});
    guest::host_probe(&client, "late", "q", params).await;
    client.push("q", "p", &[at("a", 1, 50_000)]).await;
    eventually("the first is folded", async || {
        (client.status("late").await["messages"] == 1).then_some(())
    })
    .await;
    client.push("q", "p", &[at("a", 100, 1_000), at("a", 1, 50_500), at("a", 1, 60_000)]).await;
    let window = take(&client, "probe.out", 1).await.remove(0);
    assert_eq!(window["data"]["sum"], 2, "the late record is not in it");
    let status = client.status("late").await;
    assert_eq!(status["tallies"]["late"], 1, "{status}");
    assert_eq!(status["watermark"], "1970-01-01T00:01:00.000000Z", "{status}");
    server.stop().await;
}

/// An operator says that a bounded input has ended, up to an instant and up to now.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_closes_windows_up_to_its_watermark() {
    let server = TestServer::start().await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 1000, "event_time": true}});
    guest::host_probe(&client, "ended", "q", params).await;
    client.push("q", "p", &[at("a", 1, 1_000), at("b", 1, 1_100)]).await;
    client.push("q", "r", &[at("c", 1, 5_000)]).await;
    eventually("all are folded", async || {
        let status = client.status("ended").await;
        (status["messages"] == 3 && status["lag_messages"] == 0).then_some(())
    })
    .await;
    let path = "/streams/v1/queries/ended/flush";
    let done = client.post(path, &json!({"watermark": 2_000})).await.expect(200);
    assert_eq!(done["emits"], 2, "{done}");
    take(&client, "probe.out", 2).await;
    let done = client.post(path, &json!({"watermark": "now"})).await.expect(200);
    assert_eq!(done["emits"], 1, "{done}");
    let window = take(&client, "probe.out", 1).await.remove(0);
    assert_eq!(window["data"]["key"], "c");
    // The watermark has moved: what comes later and is older counts as late.
    client.push("q", "p", &[at("a", 1, 1_200)]).await;
    eventually("the straggler is counted", async || {
        (client.status("ended").await["tallies"]["late"] == 1).then_some(())
    })
    .await;
    let bad = client.post(path, &json!({"watermark": true})).await;
    assert_eq!(bad.status, 400, "{}", bad.text);
    assert!(bad.text.contains("watermark"), "{}", bad.text);
    server.stop().await;
}

/// streams W1: state rows of a hosted fold are those of an outside worker, readable in SQL and by
/// the state route while the window is open.
#[tokio::test(flavor = "multi_thread")]
async fn open_windows_are_readable() {
    let server = TestServer::start().await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 1000, "event_time": true}});
    guest::host_probe(&client, "open", "q", params).await;
    let pushed = client.push("q", "p", &[at("a", 4, 1_000)]).await;
    assert_eq!(pushed[0]["offset"], 0);
    let sql = server.database.sql().await;
    let row = eventually("the window is open", async || {
        let rows = sql
            .query(
                "select s.key, s.partition_id::text, s.query_id::text, (s.value->'acc'->>'sum')::int
                   from queen_streams.state s join queen_streams.queries q on q.id = s.query_id
                  where q.name = 'open' and s.key <> '__wm__'",
                &[],
            )
            .await
            .expect("the view");
        rows.into_iter().next()
    })
    .await;
    assert_eq!(row.get::<_, String>(0), "tumb:1\u{1f}1970-01-01T00:00:01.000Z\u{1f}a");
    assert_eq!(row.get::<_, i32>(3), 4);
    let body = json!({"query_id": row.get::<_, String>(2), "partition_id": row.get::<_, String>(1),
                      "ripe_at_or_before": 2_000});
    let rows = client.post("/streams/v1/state/get", &body).await.expect(200);
    assert_eq!(rows["rows"][0]["value"]["windowEnd"], 2_000, "{rows}");
    assert_eq!(rows["rows"][0]["value"]["acc"]["count"], 1, "{rows}");
    server.stop().await;
}

/// A partition whose messages wait is not silent, however long nobody folds them: the window that
/// is open stays open for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_a_backlog_is_not_silent() {
    let server = TestServer::start().await;
    let client = server.client();
    let params = json!({"params": {"window_ms": 1000, "event_time": true, "idle_ms": 300}});
    guest::host_probe(&client, "behind", "q", params).await;
    client.post("/streams/v1/queries/behind/pause", &json!({})).await.expect(200);
    client.push("q", "p", &[at("a", 1, 1_000), at("a", 2, 1_100)]).await;
    // Somebody else settles the first message and holds the second for longer than the idle time.
    let pop = "batch=1&leaseSeconds=2&consumerGroup=streams.behind&subscriptionMode=all";
    let first = client.pop("q", pop).await.remove(0);
    let query_id = client.status("behind").await["query_id"].clone();
    let ack =
        json!({"leaseId": first["leaseId"], "count": 1, "transactionId": first["transactionId"]});
    let key = "tumb:1\u{1f}1970-01-01T00:00:01.000Z\u{1f}a";
    let value = json!({"acc": {"count": 1, "sum": 1}, "windowStart": 1000, "windowEnd": 2000});
    let cycle = json!({"query_id": query_id, "partition_id": first["partitionId"], "ack": ack,
        "consumer_group": "streams.behind",
        "state_ops": [{"type": "upsert", "key": key, "value": value}]});
    assert_eq!(client.cycle(&cycle).await["success"], true);
    assert_eq!(client.pop("q", pop).await.len(), 1, "the second message is held");
    client.post("/streams/v1/queries/behind/resume", &json!({})).await.expect(200);
    let window = take(&client, "probe.out", 1).await.remove(0);
    assert_eq!(window["data"]["sum"], 3, "{window}");
    server.stop().await;
}
