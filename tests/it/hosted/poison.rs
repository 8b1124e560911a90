//! Guests that fail: what it costs, and whom.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::{Client, Database, TestServer, eventually, guest};

fn message(n: i64) -> Value {
    json!({"key": "k", "n": n})
}

async fn settled(client: &Client, query: &str) -> Value {
    eventually("the query has settled everything", async || {
        let status = client.status(query).await;
        (status["lag_messages"] == 0).then_some(status)
    })
    .await
}

/// As [`settled`], once the given-up messages are counted, which follows their commit.
async fn given_up(client: &Client, query: &str, n: i64) -> Value {
    eventually("given-up messages are counted", async || {
        let status = settled(client, query).await;
        (status["dead_letters"] == n).then_some(status)
    })
    .await
}

fn params() -> Value {
    json!({"params": {"window_ms": 3_600_000, "event_time": true}})
}

/// streams W6, FB-25, FB-38, FB-51: a trap dead-letters the guilty message only, with the
/// guest's panic text,
/// function names, module and offset; neighbours are folded, the query goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_the_guilty_message_only() {
    let server = TestServer::start().await;
    let client = server.client();
    // Pushed before the query exists, so that they come as one batch.
    let mut batch: Vec<Value> = (0..40).map(message).collect();
    batch[17]["panic"] = json!("negative amount of acme");
    batch[17]["log"] = json!("about to fail");
    client.push("q", "p", &batch).await;
    client.push("q", "r", &[message(1)]).await;
    let module = guest::host_probe(&client, "poison", "q", params()).await;
    let status = given_up(&client, "poison", 1).await;
    assert_eq!(status["state"], "running", "{status}");
    assert_eq!(status["dead_letters"], 1, "{status}");
    assert_eq!(status["module"], module.as_str());
    let error = &status["last_error"];
    assert!(
        error["message"].as_str().expect("text").contains("negative amount of acme"),
        "{error}"
    );
    assert_eq!(error["offset"], 17, "{error}");
    assert_eq!(error["partition"], "p", "{error}");
    assert_eq!(error["module"], module.as_str(), "{error}");
    let names = error["backtrace"].as_array().expect("function names");
    assert!(!names.is_empty(), "{error}");
    assert!(error["logs"].to_string().contains("about to fail"), "{error}");

    let sql = server.database.sql().await;
    let rows = sql
        .query(
            "select first_offset, error_message, detail, payload from queen.log_dead_letters",
            &[],
        )
        .await
        .expect("the dead letters");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<_, i64>(0), 17);
    assert!(rows[0].get::<_, String>(1).contains("negative amount of acme"));
    assert_eq!(rows[0].get::<_, Value>(2)["module"], module.as_str());
    let payload: Value = serde_json::from_slice(rows[0].get(3)).expect("the payload as pushed");
    assert_eq!(payload, batch[17]);

    let sums = sql
        .query(
            "select (value->'acc'->>'sum')::int from queen_streams.state where key <> '__wm__'",
            &[],
        )
        .await
        .expect("the state");
    let mut sums: Vec<i32> = sums.iter().map(|row| row.get(0)).collect();
    sums.sort_unstable();
    assert_eq!(sums, [1, (0..40).sum::<i32>() - 17], "each neighbour once");
    server.stop().await;
}

/// A payload that the fold cannot read is rejected with its reason; the others are folded.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_message_is_a_dead_letter() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("q", "p", &[message(1), json!("no object"), message(2)]).await;
    guest::host_probe(&client, "reject", "q", params()).await;
    let status = given_up(&client, "reject", 1).await;
    assert_eq!(status["dead_letters"], 1, "{status}");
    assert_eq!(status["tallies"]["rejected"], 1, "{status}");
    assert_eq!(status["messages"], 3, "{status}");
    let sql = server.database.sql().await;
    let row = sql
        .query_one("select first_offset, error_message from queen.log_dead_letters", &[])
        .await
        .expect("one dead letter");
    assert_eq!(row.get::<_, i64>(0), 1);
    assert!(row.get::<_, String>(1).starts_with("rejected by the fold: "));
    server.stop().await;
}

/// With `on_poison: pause` nothing is given up: the query stops before the message and says where.
#[tokio::test(flavor = "multi_thread")]
async fn poison_may_pause_the_query_instead() {
    let server = TestServer::start().await;
    let client = server.client();
    let mut bad = message(3);
    bad["panic"] = json!("no");
    client.push("q", "p", &[message(1), message(2), bad, message(4)]).await;
    let mut more = params();
    more["on_poison"] = json!("pause");
    guest::host_probe(&client, "careful", "q", more).await;
    let status = eventually("the query is paused", async || {
        let status = client.status("careful").await;
        (status["state"] == "paused").then_some(status)
    })
    .await;
    assert_eq!(status["lag_messages"], 2, "what stands before it is committed: {status}");
    assert!(status["state_reason"].as_str().expect("text").contains("offset 2"), "{status}");
    assert_eq!(status["dead_letters"], 0);
    server.stop().await;
}

/// With both dead-letter options off an exhausted message is dropped and counted.
#[tokio::test(flavor = "multi_thread")]
async fn without_dead_letters_poison_is_dropped_and_counted() {
    let server = TestServer::start().await;
    let client = server.client();
    let options = json!({"deadLetterQueue": false, "dlqAfterMaxRetries": false});
    client.post("/api/v1/configure", &json!({"queue": "q", "options": options})).await.expect(200);
    let mut bad = message(1);
    bad["panic"] = json!("no");
    client.push("q", "p", &[bad, message(2)]).await;
    guest::host_probe(&client, "drop", "q", params()).await;
    let status = settled(&client, "drop").await;
    assert_eq!(status["tallies"]["dropped"], 1, "{status}");
    assert_eq!(status["dead_letters"], 0, "{status}");
    server.stop().await;
}

/// FB-14, FB-21: a fold that allocates for ever costs its own message; ordinary consumers of the
/// same queue and other queries go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_hurts_nobody_else() {
    let server = TestServer::start().await;
    let client = server.client();
    let mut bomb = message(1);
    bomb["hoard"] = json!(true);
    client.push("q", "p", &[message(1), bomb, message(3)]).await;
    client.push("calm", "p", &[message(1)]).await;
    guest::host_probe(&client, "bomb", "q", params()).await;
    guest::host_probe(&client, "calm", "calm", params()).await;
    let popped = client.pop("q", "batch=10&consumerGroup=plain&subscriptionMode=all").await;
    assert_eq!(popped.len(), 3);
    let status = given_up(&client, "bomb", 1).await;
    assert_eq!(status["dead_letters"], 1, "{status}");
    assert_eq!(status["last_error"]["code"], "memory", "{status}");
    assert_eq!(settled(&client, "calm").await["failures"], 0);
    server.stop().await;
}

/// FB-16, FB-45: an endless loop is cut off by its deadline, never dead-letters, and halts its own
/// query after some strikes; a neighbour goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_loop_halts_its_own_query() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| config.limits.deadline_ms = 100).await;
    let client = server.client();
    let mut spin = message(1);
    spin["spin"] = json!(true);
    client.push("q", "p", &[spin]).await;
    guest::host_probe(&client, "spin", "q", params()).await;
    guest::host_probe(&client, "calm", "calm", params()).await;
    for n in 0..5 {
        client.push("calm", "p", &[message(n)]).await;
        settled(&client, "calm").await;
    }
    let status = eventually("the query is halted", async || {
        let status = client.status("spin").await;
        (status["state"] == "halted").then_some(status)
    })
    .await;
    assert_eq!(status["lag_messages"], 1, "nothing is given up: {status}");
    assert_eq!(status["dead_letters"], 0, "{status}");
    assert_eq!(status["last_error"]["code"], "deadline", "{status}");
    assert_eq!(client.status("calm").await["state"], "running");
    server.stop().await;
}

/// A fold may stop its own query until an operator acts.
#[tokio::test(flavor = "multi_thread")]
async fn a_fold_may_halt_its_query() {
    let server = TestServer::start().await;
    let client = server.client();
    client.push("q", "p", &[json!({"halt": "the price list is missing"})]).await;
    guest::host_probe(&client, "halt", "q", params()).await;
    let status = eventually("the query is halted", async || {
        let status = client.status("halt").await;
        (status["state"] == "halted").then_some(status)
    })
    .await;
    let reason = status["state_reason"].as_str().expect("text");
    assert!(reason.contains("the price list is missing"), "{status}");
    client.post("/streams/v1/queries/halt/resume", &json!({})).await.expect(200);
    eventually("it tries again", async || {
        (client.status("halt").await["failures"].as_i64() > Some(1)).then_some(())
    })
    .await;
    server.stop().await;
}
