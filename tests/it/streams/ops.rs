//! State ops (streams section 5).

use serde_json::{Value, json};

use super::{STATE, World, committed, delete, refused, rows, upsert};
use crate::support::eventually;

/// streams O1, O2, O3, O7: the order of the array decides, every op counts, values are replaced
/// whole.
#[tokio::test(flavor = "multi_thread")]
async fn ops_apply_in_array_order() {
    let w = World::start().await;
    let id = w.feed("p", 0..1).await;
    let ops = [
        upsert("up-down", &json!(1)),
        delete("up-down"),
        delete("down-up"),
        upsert("down-up", &json!({"a": 1, "b": 2})),
        upsert("twice", &json!(1)),
        upsert("twice", &json!(2)),
        delete("missing"),
        delete("missing"),
    ];
    let answer = w.commit(&id, &json!({"state_ops": ops})).await;
    assert_eq!(answer["state_ops_applied"], 8);
    let row = |key: &str, value: Value| (key.to_owned(), value);
    let expected = [row("down-up", json!({"a": 1, "b": 2})), row("twice", json!(2))];
    assert_eq!(w.rows(&id).await, expected);

    let stamp = "select updated_at::text from foldmq.state where key = 'down-up'";
    let before: String = w.sql.query_one(stamp, &[]).await.expect("a row").get(0);
    let ops = [upsert("down-up", &json!({"c": 3})), delete("twice")];
    assert_eq!(w.commit(&id, &json!({"state_ops": ops})).await["state_ops_applied"], 2);
    assert_eq!(w.rows(&id).await, [row("down-up", json!({"c": 3}))]);
    let after: String = w.sql.query_one(stamp, &[]).await.expect("a row").get(0);
    assert!(after > before, "{after} after {before}");
    // An equal value is a write too.
    eventually("the same value refreshes the time", async || {
        w.commit(&id, &json!({"state_ops": [upsert("down-up", &json!({"c": 3}))]})).await;
        let again: String = w.sql.query_one(stamp, &[]).await.expect("a row").get(0);
        (again > after).then_some(())
    })
    .await;
    w.stop().await;
}

/// streams O4, O8, O9: one bad op among good ones, and nothing of the cycle is there.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_op_refuses_the_whole_cycle() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    let lane = w.lease("p", super::GROUP, "").await;
    let cursor = w.cursor(&id, super::GROUP).await;
    for bad in [
        json!({"type": "Upsert", "key": "k", "value": 1}),
        json!({"type": "set", "key": "k", "value": 1}),
        json!({"type": "", "key": "k"}),
        json!({"type": null, "key": "k"}),
        json!({"type": ["upsert"], "key": "k"}),
        json!({"key": "k", "value": 1}),
        json!({"type": "upsert", "value": 1}),
        json!({"type": "upsert", "key": null, "value": 1}),
        json!({"type": "upsert", "key": "a\u{0}b", "value": 1}),
        json!({"type": "upsert", "key": "k", "value": {"x": "a\u{0}b"}}),
        json!({"type": "upsert", "key": "k", "value": {"\u{0}": 1}}),
        json!({"type": "upsert", "key": "k".repeat(2_049), "value": 1}),
        json!(null),
    ] {
        let more = json!({"state_ops": [upsert("good", &json!(1)), bad, upsert("more", &json!(2))],
            "push_items": [super::item("out", "p", 1)], "ack": lane.done()});
        let answer = w.refuse(&id, &more, "state op 1").await;
        assert_eq!(w.rows(&id).await, [], "{answer}");
    }
    // Numbers that jsonb cannot hold, and halves of surrogate pairs, do not fit a `Value` here.
    for value in ["1e99999", r#""\ud800""#, r#"{"a":"\udc00"}"#] {
        let body = format!(
            r#"{{"query_id":"{}","partition_id":"{id}",
                "state_ops":[{{"type":"upsert","key":"k","value":{value}}}]}}"#,
            w.query
        );
        refused(w.client.post_text(super::CYCLE, body).await.expect(200), "state op 0");
    }
    assert_eq!(w.count("select count(*) from queen.queues where name = 'out'").await, 0);
    assert_eq!(w.cursor(&id, super::GROUP).await, cursor);
    w.commit(&id, &json!({"ack": lane.done()})).await;
    w.stop().await;
}

/// streams O5, O8, O10, C8: a key is opaque, a missing value is `{}`, a shard is its own.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_opaque_and_shards_are_apart() {
    let w = World::start().await;
    let (a, b) = (w.feed("a", 0..1).await, w.feed("b", 0..1).await);
    let other = w.client.register("other", "in").await;
    let strange =
        ["", " ", "\u{1}", "\u{1f}", "__wm__", "a b\tc\n", "key\\\"'%_$1", "Ключ", "🦀", "k"];
    let ops: Vec<Value> = strange.iter().map(|key| upsert(key, &json!({"key": key}))).collect();
    w.commit(&a, &json!({"state_ops": ops})).await;
    let found = w.rows(&a).await;
    let mut sorted = strange;
    sorted.sort_unstable();
    let expected: Vec<_> = sorted.iter().map(|k| ((*k).to_owned(), json!({"key": k}))).collect();
    assert_eq!(found, expected);

    let ops = [
        json!({"type": "upsert", "key": "k"}),
        json!({"type": "upsert", "key": "n", "value": null}),
    ];
    w.commit(&b, &json!({"state_ops": ops})).await;
    let mine = [("k".to_owned(), json!({})), ("n".to_owned(), Value::Null)];
    assert_eq!(w.rows(&b).await, mine);
    let elsewhere = w.body(&a, &json!({"query_id": other, "state_ops": [upsert("k", &json!(7))]}));
    committed(w.client.cycle(&elsewhere).await);
    let deletes: Vec<Value> = strange.iter().map(|key| delete(key)).collect();
    let answer = w.commit(&a, &json!({"state_ops": deletes})).await;
    assert_eq!(answer["state_ops_applied"], strange.len());
    assert_eq!(w.rows(&a).await, []);
    assert_eq!(w.rows(&b).await, mine);
    let read = json!({"query_id": other, "partition_id": a});
    let others = rows(&w.client.post(STATE, &read).await);
    assert_eq!(others, [("k".to_owned(), json!(7))]);
    w.stop().await;
}
