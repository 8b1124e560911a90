//! Registration of queries (streams section 2).

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{GROUP, QUERIES, World, rows, upsert, with};
use crate::support::TestServer;

async fn stored(sql: &tokio_postgres::Client, name: &str) -> Value {
    let statement = "select to_jsonb(q) - 'query_no' - 'created_at' - 'updated_at'
                     from queen_streams.queries q where name = $1";
    sql.query_one(statement, &[&name]).await.expect("a registration").get(0)
}

/// streams C2, C6, Q1, Q4, Q6, Q10, Q20, Q21, Q22, Q23, Q24, Q25, Q29, Q30, K21: one name from its
/// first registration to a conflict, without a queue or a group coming into being.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_keeps_its_id_and_its_hash() {
    let server = TestServer::start().await;
    let client = server.client();
    let sql = server.database.sql().await;
    let mut body = json!({"name": "orders.per_minute", "source_queue": "orders", "unknown": [1],
                          "sink_queue": "out", "config_hash": "9f2c"});
    let first = client.post(QUERIES, &body).await.expect(200);
    let id = first["query_id"].as_str().expect("an id");
    assert!(uuid::Uuid::try_parse(id).is_ok(), "{first}");
    let shown = |fresh: bool| {
        json!({"success": true, "query_id": id, "name": "orders.per_minute",
               "config_hash": "9f2c", "fresh": fresh, "reset": false})
    };
    assert_eq!(first, shown(true));
    let row = |source: &str, sink: Value| {
        json!({"id": id, "tenant_id": "00000000-0000-0000-0000-000000000001",
               "name": "orders.per_minute", "source_queue": source, "sink_queue": sink,
               "config_hash": "9f2c"})
    };
    assert_eq!(stored(&sql, "orders.per_minute").await, row("orders", json!("out")));

    assert_eq!(client.post(QUERIES, &body).await.expect(200), shown(false));
    for (source, sink) in [("moved", json!("")), ("again", json!("x")), ("last", json!(null))] {
        body = with(body, &json!({"source_queue": source, "sink_queue": sink, "reset": true}));
        // An equal hash resets nothing, whatever is asked for.
        assert_eq!(client.post(QUERIES, &body).await.expect(200), shown(false));
        let kept = if sink == "x" { sink } else { Value::Null };
        assert_eq!(stored(&sql, "orders.per_minute").await, row(source, kept));
    }

    for reset in [json!(null), json!(false)] {
        let other = json!({"config_hash": "77", "source_queue": "no", "reset": reset});
        let conflict = client.post(QUERIES, &with(body.clone(), &other)).await.expect(409);
        let error = conflict["error"].as_str().expect("text").to_lowercase();
        for words in ["config_hash mismatch", "orders.per_minute", "reset"] {
            assert!(error.contains(words), "{error}");
        }
        let bare = json!({"success": false, "query_id": id, "name": "orders.per_minute"});
        assert_eq!(with(conflict.clone(), &bare), conflict);
        assert!(conflict.get("denied").is_none(), "{conflict}");
        assert_eq!(stored(&sql, "orders.per_minute").await, row("last", Value::Null));
    }
    for table in ["queen.queues", "queen.log_groups", "queen.log_consumers"] {
        let found = sql.query_one(&format!("select count(*) from {table}"), &[]).await;
        assert_eq!(found.expect("a count").get::<_, i64>(0), 0, "{table}");
    }
    server.stop().await;
}

/// streams C7, Q2, Q3, Q5, Q7: what is refused creates nothing; a hash is compared byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_registration_changes_nothing() {
    let server = TestServer::start().await;
    let client = server.client();
    for (body, words) in [
        ("{", "bad body"),
        ("[]", "JSON object"),
        ("\"x\"", "JSON object"),
        ("{}", "name is required"),
        (r#"{"source_queue":"s","config_hash":"h"}"#, "name is required"),
        (r#"{"name":7,"config_hash":"h"}"#, "name is required"),
        (r#"{"name":"n","source_queue":"","config_hash":"h"}"#, "source_queue is required"),
        (r#"{"name":"n","source_queue":["s"]}"#, "source_queue is required"),
        (r#"{"name":"n","source_queue":"s"}"#, "config_hash is required"),
        (r#"{"name":"n","source_queue":"s","config_hash":""}"#, "config_hash is required"),
        (r#"{"name":"n","source_queue":"s","config_hash":12}"#, "config_hash is required"),
        (r#"{"name":"n","source_queue":"s","config_hash":"h","reset":"true"}"#, "reset"),
        (r#"{"name":"n","source_queue":"s","config_hash":"h","reset":1}"#, "reset"),
        (r#"{"name":"a\u0000","source_queue":"s","config_hash":"h"}"#, "name holds"),
    ] {
        let answer = client.post_text(QUERIES, body.to_owned()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let error = answer.body["error"].as_str().expect("text");
        assert!(error.contains(words), "{body}: {error}");
    }
    let sql = server.database.sql().await;
    let found = sql.query_one("select count(*) from queen_streams.queries", &[]).await;
    assert_eq!(found.expect("a count").get::<_, i64>(0), 0);

    let long = "ü\u{1f}%'\"\\ ".repeat(2_000);
    for (name, hash, other) in [("case", "Ab", "ab"), ("space", "x", "x "), ("long", &long, "l")] {
        let body = json!({"name": name, "source_queue": "s", "config_hash": hash});
        let first = client.post(QUERIES, &body).await.expect(200);
        assert_eq!(first["config_hash"], hash);
        assert_eq!(client.post(QUERIES, &body).await.expect(200)["fresh"], false);
        client.post(QUERIES, &with(body, &json!({"config_hash": other}))).await.expect(409);
    }
    server.stop().await;
}

/// streams Q26, Q27, Q28, X13: a reset deletes accumulators, watermark and sessions on every
/// partition, no row of another query, and moves neither cursor nor lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_empties_the_query_and_nothing_else() {
    let w = World::start().await;
    let other = w.client.register("other", "in").await;
    let ops: Vec<Value> = ["tumb:60\u{1f}0\u{1f}k", "__wm__", "sess:5\u{1f}open\u{1f}k"]
        .iter()
        .map(|key| upsert(key, &json!({"acc": 1})))
        .collect();
    let mut ids = Vec::new();
    for partition in ["a", "b", "c"] {
        let id = w.feed(partition, 0..5).await;
        w.commit(&id, &json!({"state_ops": ops})).await;
        w.commit(&id, &json!({"query_id": other, "state_ops": ops})).await;
        ids.push(id);
    }
    let lane = w.lease("a", GROUP, "batch=3").await;
    let before = w.cursor(&ids[0], GROUP).await;
    assert_eq!(before["batch_end"], 2, "{before}");

    let body = json!({"name": "q", "source_queue": "in", "config_hash": "new", "reset": true});
    let reset = w.client.post(QUERIES, &body).await.expect(200);
    let shown = json!({"success": true, "query_id": w.query, "name": "q", "config_hash": "new",
                       "fresh": false, "reset": true});
    assert_eq!(reset, shown);
    for id in &ids {
        assert_eq!(w.rows(id).await, []);
        let others = json!({"query_id": other, "partition_id": id});
        assert_eq!(rows(&w.client.post(super::STATE, &others).await).len(), 3);
    }
    assert_eq!(w.cursor(&ids[0], GROUP).await, before);
    // The worker that holds the lease goes on, on empty state.
    let fold = json!({"state_ops": [upsert("k", &json!(1))], "ack": lane.done()});
    w.commit(&ids[0], &fold).await;
    assert_eq!(w.rows(&ids[0]).await, [("k".to_owned(), json!(1))]);
    assert_eq!(w.cursor(&ids[0], GROUP).await["committed"], 2);
    // The old hash is the wrong one now.
    let old = json!({"name": "q", "source_queue": "in", "config_hash": "h"});
    w.client.post(QUERIES, &old).await.expect(409);
    w.stop().await;
}

/// streams Q30, Q31: of many first registrations one is fresh, and the rest are judged by it.
#[tokio::test(flavor = "multi_thread")]
async fn first_registrations_race_to_one_row() {
    let server = TestServer::start().await;
    let client = server.client();
    for round in 0..5 {
        let name = format!("race{round}");
        let bodies = (0..24).map(|i| {
            let hash = if i % 2 == 0 { "even" } else { "odd" };
            json!({"name": name, "source_queue": "s", "config_hash": hash})
        });
        let sent = bodies.map(async |body| (client.post(QUERIES, &body).await, body));
        let answers = join_all(sent).await;
        let fresh: Vec<_> = answers.iter().filter(|(a, _)| a.body["fresh"] == true).collect();
        assert_eq!(fresh.len(), 1, "round {round}");
        let winner = &fresh[0].1["config_hash"];
        let id = &fresh[0].0.body["query_id"];
        for (answer, body) in &answers {
            let status = if body["config_hash"] == *winner { 200 } else { 409 };
            assert_eq!(answer.status, status, "{}", answer.text);
            assert_eq!(&answer.body["query_id"], id, "{}", answer.text);
        }
        let sql = server.database.sql().await;
        assert_eq!(stored(&sql, &name).await["config_hash"], *winner);
    }
    server.stop().await;
}
