//! State reads (streams section 3).

use std::sync::Arc;

use serde_json::{Value, json};

use super::{GROUP, STATE, World, delete, item, rows, upsert, with};
use crate::support::TestServer;

fn keys(rows: &[(String, Value)]) -> Vec<&str> {
    rows.iter().map(|(key, _)| key.as_str()).collect()
}

/// streams G3, G4, G5, G6, G7, G8, G9, G10, G11, G12, G22, O6: each filter, and all of them.
#[tokio::test(flavor = "multi_thread")]
async fn filters_are_anded_and_rows_come_in_byte_order() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    let end = |at: Value| json!({"acc": 1, "windowEnd": at});
    let ops = [
        upsert("tumb:6\u{1f}1\u{1f}a", &end(json!(1000))),
        upsert("tumb:60\u{1f}1\u{1f}a", &end(json!(1500.0))),
        upsert("tumb:6\u{1f}2\u{1f}a", &end(json!(2000.5))),
        upsert("b%_\\x", &end(json!("1000"))),
        upsert("bxyz", &end(json!(null))),
        upsert("Z", &json!([1000])),
        upsert("a", &json!(1000)),
        upsert("é", &json!({"acc": 1})),
        upsert("__wm__", &json!({"eventTimeMs": 5})),
        upsert("null", &Value::Null),
    ];
    w.commit(&id, &json!({"state_ops": ops})).await;
    let read = async |filter: Value| {
        let body = with(json!({"query_id": w.query, "partition_id": id}), &filter);
        rows(&w.client.post(STATE, &body).await)
    };
    let all = read(json!({})).await;
    let order = [
        "Z",
        "__wm__",
        "a",
        "b%_\\x",
        "bxyz",
        "null",
        "tumb:6\u{1f}1\u{1f}a",
        "tumb:6\u{1f}2\u{1f}a",
        "tumb:60\u{1f}1\u{1f}a",
        "é",
    ];
    assert_eq!(keys(&all), order);
    assert_eq!(all[5], ("null".to_owned(), Value::Null));

    let same = [
        json!({"keys": null, "key_prefix": null, "ripe_at_or_before": null}),
        json!({"keys": [], "key_prefix": "", "ripe_at_or_before": "1000"}),
        json!({"keys": "a", "key_prefix": 5, "unknown": true}),
        json!({"keys": {"a": 1}}),
    ];
    for filter in same {
        assert_eq!(read(filter.clone()).await, all, "{filter}");
    }
    let cases = [
        (json!({"keys": ["a", "Z", "a", "missing", "z"]}), vec!["Z", "a"]),
        (json!({"keys": ["missing"]}), vec![]),
        (json!({"key_prefix": "tumb:6\u{1f}"}), vec![order[6], order[7]]),
        (json!({"key_prefix": "b%"}), vec!["b%_\\x"]),
        (json!({"key_prefix": "b%_\\"}), vec!["b%_\\x"]),
        (json!({"key_prefix": "_"}), vec!["__wm__"]),
        (json!({"key_prefix": "%"}), vec![]),
        (json!({"key_prefix": "a\u{0}"}), vec![]),
        (json!({"ripe_at_or_before": 999.99}), vec![]),
        (json!({"ripe_at_or_before": 1000}), vec![order[6]]),
        (json!({"ripe_at_or_before": 1.5e3}), vec![order[6], order[8]]),
        (json!({"ripe_at_or_before": 2000.25}), vec![order[6], order[8]]),
        (json!({"ripe_at_or_before": 1e300}), vec![order[6], order[7], order[8]]),
        (json!({"keys": ["a", "bxyz"], "key_prefix": "b"}), vec!["bxyz"]),
        (json!({"key_prefix": "tumb:6\u{1f}", "ripe_at_or_before": 1500}), vec![order[6]]),
        (
            json!({"keys": [order[7], order[8]], "key_prefix": "tumb:6",
                   "ripe_at_or_before": 1500}),
            vec![order[8]],
        ),
        (json!({"keys": ["a"], "ripe_at_or_before": 5000}), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(keys(&read(filter.clone()).await), expected, "{filter}");
    }
    w.stop().await;
}

/// streams C7, G2, G13, G14, G15, G16, G20: what is missing, what is malformed, what is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_needs_two_ids_and_unknown_ones_have_no_rows() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    let unknown = "00000000-0000-7000-8000-00000000beef";
    let bad = [
        (json!({"partition_id": id}), "query_id"),
        (json!({"query_id": w.query}), "partition_id"),
        (json!({"query_id": null, "partition_id": id}), "query_id"),
        (json!({"query_id": w.query, "partition_id": ""}), "partition_id"),
        (json!({"query_id": 5, "partition_id": id}), "query_id"),
        (json!({"query_id": "", "partition_id": "x"}), "query_id is required"),
        (json!({"query_id": "x", "partition_id": id}), "query_id"),
        (json!({"query_id": w.query, "partition_id": "p"}), "partition_id"),
        (json!([w.query, id]), "object"),
    ];
    for (body, words) in bad {
        let refused = w.client.post(STATE, &body).await.expect(400);
        assert_eq!((&refused["success"], &refused["rows"]), (&json!(false), &json!([])), "{body}");
        assert!(refused["error"].as_str().expect("text").contains(words), "{body}: {refused}");
    }
    assert_eq!(w.client.post_text(STATE, "{\"query_id\"".to_owned()).await.status, 400);
    w.commit(&id, &json!({"state_ops": [upsert("k", &json!(1))]})).await;
    let empty = json!({"success": true, "rows": []});
    for (query, partition) in [(unknown, id.as_str()), (&w.query, unknown), (unknown, unknown)] {
        let body = json!({"query_id": query, "partition_id": partition});
        assert_eq!(w.client.post(STATE, &body).await.expect(200), empty);
    }
    let none = json!({"query_id": w.query, "partition_id": id, "keys": ["other"]});
    assert_eq!(w.client.post(STATE, &none).await.expect(200), empty);
    w.stop().await;
}

/// streams A1, G1, G27, K12: due rows of a quiet partition are read, emitted and deleted in one
/// cycle without ack; neither read nor cycle touches cursor or lease.
#[tokio::test(flavor = "multi_thread")]
async fn due_windows_of_a_quiet_partition_are_flushed_once() {
    let w = World::start().await;
    let id = w.feed("p", 0..3).await;
    let window = |end: u64| json!({"acc": end, "windowStart": end - 10, "windowEnd": end});
    let ops: Vec<Value> =
        [10, 20, 30].iter().map(|n| upsert(&format!("t\u{1f}{n}\u{1f}k"), &window(*n))).collect();
    w.commit(&id, &json!({"state_ops": ops})).await;
    w.lease("p", GROUP, "batch=2").await;
    let cursor = w.cursor(&id, GROUP).await;

    let read = json!({"query_id": w.query, "partition_id": id, "keys": [],
                      "key_prefix": "t\u{1f}", "ripe_at_or_before": 20});
    let due = rows(&w.client.post(STATE, &read).await);
    assert_eq!(due.len(), 2);
    assert_eq!(rows(&w.client.post(STATE, &read).await), due, "a read changes nothing");
    let deletes: Vec<Value> = due.iter().map(|(key, _)| delete(key)).collect();
    let items: Vec<Value> = due.iter().map(|(_, v)| item("out", "Default", v.clone())).collect();
    let flush = json!({
        "state_ops": deletes,
        "push_items": items,
        "ack": null, "release_lease": true,
    });
    let answer = w.commit(&id, &flush).await;
    assert_eq!((&answer["ack_result"], &answer["state_ops_applied"]), (&json!(null), &json!(2)));
    assert_eq!(rows(&w.client.post(STATE, &read).await), []);
    assert_eq!(w.rows(&id).await, [("t\u{1f}30\u{1f}k".to_owned(), window(30))]);
    assert_eq!(w.payloads("out").await, [window(10), window(20)]);
    assert_eq!(w.cursor(&id, GROUP).await, cursor);
    w.stop().await;
}

/// streams G10, G23, G24, G25, G26, O2: a whole shard comes back as written, through any broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_shard_comes_back_as_it_was_written() {
    let w = World::start().await;
    let second = TestServer::on(Arc::clone(&w.server.database)).await;
    let id = w.feed("p", 0..1).await;
    let ops: Vec<Value> =
        (0..6_000).map(|n| upsert(&format!("k{n:05}"), &json!({"windowEnd": n}))).collect();
    w.commit(&id, &json!({"state_ops": ops})).await;
    let found = w.rows(&id).await;
    assert_eq!(found.len(), 6_000);
    assert_eq!(found[5_999], ("k05999".to_owned(), json!({"windowEnd": 5_999})));

    let value = r#"{"windowEnd":10000,"d":0.1,"e":-1.7976931348623157e308,"i":9007199254740993,
                    "s":"a\u001f\"é😀","n":null,"l":[1,2.50,{"z":1,"a":2}]}"#;
    let text = format!(
        r#"{{"query_id":"{}","partition_id":"{id}",
            "state_ops":[{{"type":"upsert","key":"raw","value":{value}}}]}}"#,
        w.query
    );
    assert_eq!(w.client.post_text(super::CYCLE, text).await.expect(200)["success"], true);
    let read = json!({"query_id": w.query, "partition_id": id, "keys": ["raw"]});
    let answer = second.client().post(STATE, &read).await;
    assert_eq!(rows(&answer)[0].1, serde_json::from_str::<Value>(value).expect("JSON"));
    for spelled in ["\"windowEnd\":10000,", "9007199254740993", "0.1", "-1.7976931348623157e308"] {
        assert!(answer.text.contains(spelled), "{spelled}: {}", answer.text);
    }
    let stamp = async || {
        let row = second.client().post(STATE, &read).await.expect(200)["rows"][0].clone();
        row["updated_at"].as_str().expect("a time").to_owned()
    };
    let first = stamp().await;
    assert!(first.ends_with('Z') && first.parse::<jiff::Timestamp>().is_ok(), "{first}");
    w.commit(&id, &json!({"state_ops": [upsert("other", &json!(1))]})).await;
    assert_eq!(stamp().await, first, "another row's write");
    // Through one broker and the other, the last answered cycle is what is read.
    for n in 0..20 {
        let (writer, reader) = if n % 2 == 0 { (&w.server, &second) } else { (&second, &w.server) };
        let body = w.body(&id, &json!({"state_ops": [upsert("raw", &json!({"n": n}))]}));
        super::committed(writer.client().cycle(&body).await);
        assert_eq!(rows(&reader.client().post(STATE, &read).await)[0].1, json!({"n": n}));
    }
    assert!(stamp().await > first);
    second.stop().await;
    w.stop().await;
}
