//! Push: what is stored, under which identity, and what is refused.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{all, delivered, fill, item, keys, number, push};
use crate::support::TestServer;

/// data 1, data 2, data 3, data 4, data 5, data 6, data 7: results come in request order, and each
/// leads to the message in its own lane.
#[tokio::test(flavor = "multi_thread")]
async fn every_item_gets_a_result_and_lands_in_its_own_lane() {
    let server = TestServer::start().await;
    let client = server.client();
    let items = [
        json!({"queue": "q", "payload": 0}),
        json!({"queue": "q", "partition": null, "transactionId": null, "payload": 1}),
        json!({"queue": "q", "partition": "p", "transactionId": "parcel", "payload": 2}),
        json!({"queue": "r", "partition": "p", "transactionId": "", "payload": 3}),
        json!({"queue": "q", "partition": "p", "payload": 4}),
    ];
    let results = push(&client, &items).await;
    for (i, (result, item)) in results.iter().zip(&items).enumerate() {
        assert_eq!(result["index"], i, "{result}");
        assert_eq!(result["status"], "queued", "{result}");
        assert_eq!(result["queueName"], item["queue"], "{result}");
        let id: Uuid = result["message_id"].as_str().expect("text").parse().expect("a uuid");
        assert_eq!(id.get_version_num(), 7, "{result}");
        let key = if i == 2 { "parcel".to_owned() } else { id.to_string() };
        assert_eq!(result["transaction_id"], key, "{result}");
        assert_eq!(result["offset"], [0, 1, 0, 0, 1][i], "{result}");
    }
    for (queue, partition, places) in
        [("q", "Default", vec![0, 1]), ("q", "p", vec![2, 4]), ("r", "p", vec![3])]
    {
        let messages = client.pop(&format!("{queue}/partition/{partition}"), "").await;
        assert_eq!(messages.len(), places.len(), "{queue} {partition}: {messages:?}");
        for (message, place) in messages.iter().zip(places) {
            assert_eq!(message["data"], place);
            assert_eq!(message["partition"], partition);
            assert_eq!(message["id"], results[place]["message_id"]);
            assert_eq!(message["transactionId"], results[place]["transaction_id"]);
        }
    }
    assert_eq!(push(&client, &[]).await, Vec::<Value>::new());
    server.stop().await;
}

/// data 8, data 9, data 12: one malformed item refuses the whole request, and nothing is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_item_refuses_the_whole_request() {
    let server = TestServer::start().await;
    let client = server.client();
    let good = r#"{"queue":"good","payload":1}"#;
    let long = "x".repeat(65_536);
    let items = [
        r#"{"queue":"q"}"#,
        r#"{"queue":"q","data":1}"#,
        r#"{"payload":1}"#,
        r#"{"queue":"","payload":1}"#,
        r#"{"queue":null,"payload":1}"#,
        r#"{"queue":"a\u0000b","payload":1}"#,
        r#"{"queue":"q","partition":"a\u001f","payload":1}"#,
        r#"{"queue":"q","transactionId":"a\nb","payload":1}"#,
        r#"{"queue":"q","payload":}"#,
        r#""q""#,
        &format!(r#"{{"queue":"q","transactionId":"{long}","payload":1}}"#),
    ];
    let bodies = items.map(|item| format!(r#"{{"items":[{good},{item},{good}]}}"#));
    let shapes = ["", "{}", r#"{"items":{}}"#, r#"{"items":null}"#, "[]", r#"{"items":["#];
    for body in bodies.into_iter().chain(shapes.map(str::to_owned)) {
        let answer = client.post_text("/api/v1/push", body.clone()).await.expect(400);
        let shown = &body[..body.len().min(120)];
        assert!(answer["error"].as_str().is_some_and(|e| !e.is_empty()), "{shown}: {answer}");
        assert_eq!(answer.get("code"), None, "{shown}: {answer}");
    }
    assert_eq!(number(&server, "select count(*) from queen.queues").await, 0);
    assert_eq!(number(&server, "select count(*) from queen.log_segments").await, 0);
    let longest = "x".repeat(65_535);
    let results = push(&client, &[item("q", "p", &longest)]).await;
    assert_eq!(results[0]["status"], "queued");
    assert_eq!(keys(&client.pop("q", "").await), [longest]);
    server.stop().await;
}

/// data 9, data 10, data 11: a payload comes back as it was spelled, whatever JSON it is.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_back_as_they_were_spelled() {
    let server = TestServer::start().await;
    let client = server.client();
    let big = format!(r#"{{"text":"{}"}}"#, "ab\\n\u{e9}".repeat(90_000));
    assert!(big.len() > 500_000);
    let payloads = [
        "null",
        "true",
        "false",
        r#""""#,
        "[]",
        "{}",
        "9007199254740991",
        "-9007199254740991",
        r#"{"z":1,"a":{"c":[1,[2,{"d":null}]],"b":{}},"z2":0}"#,
        r#"{"n":[1.0,1e2,1E+2,0.10,-0,123456789012345678901234567890]}"#,
        r#""nul \u0000, quote \", slash \/ \\, tab \t, pair \ud83d\ude00""#,
        "\"日本 ✓ 🎈 \u{7f}\u{2028}\"",
        &big,
    ];
    let items: Vec<String> =
        payloads.iter().map(|p| format!(r#"{{"queue":"q","payload":{p}}}"#)).collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    client.post_text("/api/v1/push", body).await.expect(201);
    let answer = client.get("/api/v1/pop/queue/q").await;
    let mut rest = answer.text.as_str();
    for payload in payloads {
        let spelled = format!("\"data\":{payload},\"producerSub\"");
        let shown = &payload[..payload.len().min(60)];
        let at = rest.find(&spelled).unwrap_or_else(|| panic!("{shown} as spelled"));
        rest = &rest[at + spelled.len()..];
    }
    let messages = answer.expect(200)["messages"].clone();
    for (message, payload) in messages.as_array().expect("a list").iter().zip(payloads) {
        let pushed: Value = serde_json::from_str(payload).expect("JSON");
        assert_eq!(message["data"], pushed);
    }
    server.stop().await;
}

/// data 13, data 14: a body cannot forge trace or producer.
#[tokio::test(flavor = "multi_thread")]
async fn trace_and_producer_of_a_body_are_ignored() {
    let server = TestServer::start().await;
    let client = server.client();
    let forged = json!({"queue": "q", "payload": {"traceId": "inner"}, "producerSub": "eve",
                        "traceId": "01994c10-6a01-7b1e-8c44-0d1f5a77c901"});
    push(&client, &[forged]).await;
    let messages = client.pop("q", "").await;
    assert_eq!(messages[0].get("traceId"), Some(&Value::Null));
    assert_eq!(messages[0].get("producerSub"), Some(&Value::Null));
    assert_eq!(messages[0]["data"], json!({"traceId": "inner"}));
    server.stop().await;
}

/// data 12, data 16, data 17: a push makes its queue, whose labels are the parts of its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_push_makes_its_queue_with_labels_from_the_name() {
    let server = TestServer::start().await;
    let client = server.client();
    let body = r#"{"items":[
        {"queue":"a.b.c","partition":"x\u002fy","transactionId":"caf\u00e9","payload":1},
        {"queue":"plain","payload":2}]}"#;
    client.post_text("/api/v1/push", body.to_owned()).await.expect(201);
    let sql = server.database.sql().await;
    let rows = sql
        .query("select name, namespace, task from queen.queues order by name", &[])
        .await
        .expect("the queues");
    let found: Vec<[String; 3]> =
        rows.iter().map(|row| [row.get(0), row.get(1), row.get(2)]).collect();
    assert_eq!(found, [["a.b.c", "a", "b"], ["plain", "plain", ""]]);
    for query in ["namespace=a", "task=b&consumerGroup=g&subscriptionMode=all"] {
        let answer = client.get(&format!("/api/v1/pop?{query}")).await.expect(200);
        let messages = answer["messages"].as_array().expect("a list");
        assert_eq!(keys(messages), ["caf\u{e9}"], "{query}");
        assert_eq!(messages[0]["partition"], "x/y");
    }
    server.stop().await;
}

/// data 18: long names and names with any character are addressable in push and pop.
#[tokio::test(flavor = "multi_thread")]
async fn long_and_odd_names_are_addressable() {
    let server = TestServer::start().await;
    let client = server.client();
    let long = "p".repeat(200);
    let names = [long.as_str(), "with space", "a/b", "a+b", "%2F", "日本:✓", "a.b", "?&#=\"\\"];
    for (i, name) in names.iter().enumerate() {
        push(&client, &[json!({"queue": name, "partition": name, "payload": i})]).await;
        push(&client, &[json!({"queue": name, "partition": "other", "payload": "other"})]).await;
        let raw = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let path = format!("/api/v1/pop/queue/{raw}/partition/{raw}");
        let answer = client.get(&path).await.expect(200);
        assert_eq!(answer["queue"], *name);
        assert_eq!(answer["partition"], *name);
        assert_eq!(answer["messages"].as_array().map(Vec::len), Some(1), "{name}: {answer}");
        assert_eq!(answer["messages"][0]["data"], i, "{name}");
        assert_eq!(all(&client.pop(&raw.to_string(), "").await, "data"), ["other"], "{name}");
    }
    server.stop().await;
}

/// data 19: eight producers at once lose nothing and store nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_producers_lose_nothing() {
    let server = TestServer::start().await;
    let producers = (0..8).map(|producer| {
        let client = server.client();
        tokio::spawn(async move {
            for round in 0..20 {
                let key = |i| format!("{producer}-{round}-{i}");
                let lane = |i: usize| ["a", "b", "c"][(producer + i) % 3];
                let items: Vec<Value> = (0..4).map(|i| item("q", lane(i), &key(i))).collect();
                assert_eq!(all(&push(&client, &items).await, "status"), ["queued"; 4]);
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await.expect("a producer");
    }
    let client = server.client();
    let mut found = Vec::new();
    while found.len() < 640 {
        let messages = delivered(&client, "q", "batch=500&partitions=3&autoAck=true").await;
        found.extend(keys(&messages).into_iter().map(str::to_owned));
    }
    assert!(client.pop("q", "partitions=3").await.is_empty());
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 640, "every key once");
    server.stop().await;
}

/// data 22: what cannot be stored for one (queue, partition) costs the others nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_refuses_costs_its_neighbours_nothing() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "late", &["before"]).await;
    let sql = server.database.sql().await;
    sql.batch_execute(
        "create function refuse() returns trigger language plpgsql as $$
           begin raise exception 'disk of this partition is full'; end $$;
         create trigger refuse_new before insert on queen.log_partitions
           for each row when (new.name = 'cursed') execute function refuse();
         create trigger refuse_old before update on queen.log_partitions
           for each row when (old.name = 'late') execute function refuse()",
    )
    .await
    .expect("the triggers");
    let lanes = ["a", "cursed", "b", "late", "a", "cursed", "c"];
    let items: Vec<Value> = (0..).zip(lanes).map(|(i, p)| item("q", p, &i.to_string())).collect();
    let results = push(&client, &items).await;
    for (lane, result) in lanes.iter().zip(&results) {
        if ["cursed", "late"].contains(lane) {
            assert_eq!(result["status"], "failed", "{lane}: {result}");
            assert_eq!(result.get("offset"), None, "{lane}: {result}");
            assert!(!result["message_id"].is_null(), "{lane}: {result}");
        } else {
            assert_eq!(result["status"], "queued", "{lane}: {result}");
        }
    }
    assert_eq!(number(&server, "select sum(n)::bigint from queen.log_segments").await, 5);
    // Where nothing at all can be stored, the request fails, and a repetition is safe.
    let failed = client.post("/api/v1/push", &json!({"items": [items[1]]})).await;
    assert_eq!(failed.headers["retry-after"], "1");
    failed.expect(503);
    sql.batch_execute(
        "drop trigger refuse_new on queen.log_partitions;
         drop trigger refuse_old on queen.log_partitions",
    )
    .await
    .expect("the partitions are well again");
    let again = push(&client, &items).await;
    let words = ["duplicate", "queued", "duplicate", "queued", "duplicate", "queued", "duplicate"];
    assert_eq!(all(&again, "status"), words);
    server.stop().await;
}
