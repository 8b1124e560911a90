//! What users read with SQL (streams section 12).

use serde_json::{Value, json};

use super::{GROUP, QUERIES, World, delete, item, upsert};

/// streams D1, D2, Q17: names, columns and types of the documented tables; the default tenant does
/// not read its quota.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_tables_are_there() {
    let w = World::start().await;
    let columns = async |table: &str| {
        let sql = "select column_name || ' ' || data_type from information_schema.columns
                   where table_schema = 'queen_streams' and table_name = $1";
        let rows = w.sql.query(sql, &[&table]).await.expect("columns");
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    for (table, expected) in [
        (
            "queries",
            &[
                "id uuid",
                "tenant_id uuid",
                "name text",
                "source_queue text",
                "sink_queue text",
                "config_hash text",
                "created_at timestamp with time zone",
                "updated_at timestamp with time zone",
            ][..],
        ),
        (
            "state",
            &[
                "query_id uuid",
                "partition_id uuid",
                "key text",
                "value jsonb",
                "updated_at timestamp with time zone",
            ],
        ),
        ("quota", &["tenant_id uuid", "enabled boolean", "max_queries integer"]),
    ] {
        let found = columns(table).await;
        for column in expected {
            assert!(found.iter().any(|c| c == column), "{table}: {column} in {found:?}");
        }
    }
    let twice = "insert into queen_streams.queries (id, tenant_id, name, source_queue, config_hash)
                 select gen_random_uuid(), tenant_id, name, 's', 'h' from queen_streams.queries";
    let refused = w.sql.execute(twice, &[]).await.expect_err("(tenant, name) is unique");
    assert_eq!(refused.code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION));

    let quota = "insert into queen_streams.quota (tenant_id, enabled, max_queries)
                 values ('00000000-0000-0000-0000-000000000001', false, 0)";
    w.sql.execute(quota, &[]).await.expect("a quota");
    let body = json!({"name": "more", "source_queue": "in", "config_hash": "h"});
    assert_eq!(w.client.post(QUERIES, &body).await.expect(200)["fresh"], true);
    w.stop().await;
}

/// streams D2, D4, K10, K11: open windows by the users' recipe, gone with the cycle that emits
/// them, and with their query.
#[tokio::test(flavor = "multi_thread")]
async fn open_windows_are_read_with_sql() {
    let w = World::start().await;
    let id = w.feed("p", 0..2).await;
    let window = |acc: f64, start: u64| {
        let end = start + 60_000;
        json!({"acc": acc, "windowStart": start, "windowEnd": end})
    };
    let session = json!({"acc": 1, "sessionStart": 5, "lastEventTime": 9});
    let ops = [
        upsert("tumb:60\u{1f}0\u{1f}acme", &window(41.5, 0)),
        upsert("tumb:60\u{1f}60000\u{1f}acme", &window(2.0, 60_000)),
        upsert("sess:5\u{1f}open\u{1f}acme", &session),
        upsert("__wm__", &json!({"eventTimeMs": 61_000})),
    ];
    w.commit(&id, &json!({"state_ops": ops})).await;
    let recipe = async || {
        let sql = "select split_part(s.key, chr(31), 3), (s.value->>'acc')::float8,
                     (s.value->>'windowStart')::bigint, (s.value->>'windowEnd')::bigint
                   from queen_streams.state s join queen_streams.queries q on q.id = s.query_id
                   where q.name = 'q' and s.partition_id = $1::text::uuid
                     and s.value ? 'windowEnd' order by s.value->'windowStart'";
        let rows = w.sql.query(sql, &[&id]).await.expect("the recipe");
        let row = |r: &tokio_postgres::Row| {
            json!([
                r.get::<_, String>(0),
                r.get::<_, f64>(1),
                r.get::<_, i64>(2),
                r.get::<_, i64>(3)
            ])
        };
        rows.iter().map(row).collect::<Vec<Value>>()
    };
    let (first, open) = (json!(["acme", 41.5, 0, 60_000]), json!(["acme", 2.0, 60_000, 120_000]));
    assert_eq!(recipe().await, [first, open.clone()]);

    let lane = w.lease("p", GROUP, "").await;
    let close = json!({"state_ops": [delete("tumb:60\u{1f}0\u{1f}acme")], "ack": lane.done(),
                       "push_items": [item("out", "p", window(41.5, 0))]});
    w.commit(&id, &close).await;
    assert_eq!(recipe().await, [open]);
    assert_eq!(w.payloads("out").await, [window(41.5, 0)]);

    w.sql.execute("delete from queen_streams.queries", &[]).await.expect("deleted");
    assert_eq!(w.count("select count(*) from queen_streams.state").await, 0);
    w.stop().await;
}
