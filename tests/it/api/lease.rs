//! Leases: what they hold back, how they end, how they are extended; and pops without one.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ack, all, check_entry, configure, delivered, fill, item, keys, leases_over, number, push,
};
use crate::support::{Client, Database, TestServer, eventually};

const ALL: &str = "subscriptionMode=all";

/// Whole seconds until the only lease of the database ends, rounded up.
async fn left_s(server: &TestServer) -> i64 {
    let left = "ceil(extract(epoch from lease_expires_at - clock_timestamp()))::bigint";
    number(server, &format!("select {left} from queen.log_consumers where lease_id is not null"))
        .await
}

async fn extend(client: &Client, lease: &Value, body: &str) -> Value {
    let lease = lease.as_str().expect("text");
    let answer = client
        .post_text(&format!("/api/v1/lease/{lease}/extend"), body.to_owned())
        .await
        .expect(200);
    assert_eq!(answer["leaseId"], lease);
    assert_eq!(answer["newExpiresAt"], answer["expiresAt"], "{answer}");
    assert_eq!(answer["lease_expires_at"], answer["expiresAt"], "{answer}");
    answer
}

/// data 60, data 61, data 62, data 63: a lease holds a partition for its group, from the cursor to
/// the last delivered message, and whatever comes behind; other groups do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holds_the_partition_for_its_group() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b", "c"]).await;
    let held = client.pop("q", "batch=2").await;
    assert_eq!(keys(&held), ["a", "b"]);
    let span = "select array_to_string(array_agg(committed || ':' || batch_end), ' ')
                  from queen.log_consumers where lease_id is not null";
    let row = server.database.sql().await.query_one(span, &[]).await.expect(span);
    assert_eq!(row.get::<_, String>(0), "-1:1");
    fill(&client, "q", "p", &["d"]).await;
    fill(&client, "q", "r", &["x"]).await;
    assert_eq!(keys(&client.pop("q", "partitions=5").await), ["x"], "other lanes are free");
    assert!(client.pop("q", "partitions=5").await.is_empty());
    assert!(client.pop("q/partition/p", "").await.is_empty());
    let other = client.pop("q/partition/p", &format!("consumerGroup=g&{ALL}")).await;
    assert_eq!(keys(&other), ["a", "b", "c", "d"]);
    check_entry(&ack(&client, &held[1], "completed").await, [true, true, false, false]);
    assert_eq!(keys(&client.pop("q", "").await), ["c", "d"]);
    server.stop().await;
}

/// data 64, data 65, data 66, data 101: an expired lease gives the whole rest back, as often as it
/// happens, without charge, and whoever polled in vain meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn expiry_gives_everything_back_free_of_charge() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "q", json!({"retryLimit": 1})).await;
    fill(&client, "q", "p", &["a", "b", "c"]).await;
    for attempt in 1..=3 {
        let mut vain = 0;
        let held = eventually("the lease ends", async || {
            let found = client.pop("q", "leaseSeconds=1").await;
            vain += usize::from(found.is_empty());
            (!found.is_empty()).then_some(found)
        })
        .await;
        assert_eq!(keys(&held), ["a", "b", "c"]);
        assert_eq!(all(&held, "deliveryAttempt"), [attempt; 3]);
        assert_eq!(vain > 0, attempt > 1, "polled in vain while it was leased");
    }
    let charged = "select max(retry_count)::bigint from queen.log_consumers";
    assert_eq!(number(&server, charged).await, 0);
    // The whole retry budget is still there.
    let last = delivered(&client, "q", "").await;
    check_entry(&ack(&client, &last[0], "failed").await, [true, true, false, false]);
    let last = client.pop("q", "").await;
    check_entry(&ack(&client, &last[0], "failed").await, [true, true, true, false]);
    assert_eq!(keys(&client.pop("q", "").await), ["b", "c"]);
    server.stop().await;
}

/// data 67, data 68: the lease is as long as the pop asks, else as its queue says, else 60 s.
#[tokio::test(flavor = "multi_thread")]
async fn the_length_of_a_lease_is_the_pops_or_the_queues() {
    let server = TestServer::start().await;
    let client = server.client();
    configure(&client, "default", json!({})).await;
    configure(&client, "short", json!({"leaseTime": 20})).await;
    for (queue, query, seconds) in [
        ("implicit", "", 60),
        ("implicit", "leaseSeconds=0", 60),
        ("implicit", "leaseSeconds=-3", 60),
        ("default", "", 300),
        ("default", "leaseSeconds=10", 10),
        ("short", "", 20),
        ("short", "leaseSeconds=200", 200),
    ] {
        push(&client, &[json!({"queue": queue, "payload": 1})]).await;
        for path in [queue, &format!("{queue}/partition/Default")] {
            let message = client.pop(path, query).await.remove(0);
            let left = left_s(&server).await;
            // The machine may be slow, but not as slow as the lengths differ.
            assert!(left <= seconds && left > seconds - 9, "{path} {query}: {left}");
            let status = if path == queue { "retry" } else { "completed" };
            ack(&client, &message, status).await;
        }
    }
    // Discovery takes the length of each message's own queue.
    configure(&client, "short", json!({"leaseTime": 20, "namespace": "n"})).await;
    push(&client, &[json!({"queue": "short", "payload": 1})]).await;
    client.get("/api/v1/pop?namespace=n").await.expect(200);
    let left = left_s(&server).await;
    assert!(left <= 20 && left > 11, "{left}");
    server.stop().await;
}

/// data 69, data 70, data 72, data 73: an extension covers every partition of the lease, holds the
/// messages beyond the first expiry, never shortens, and lasts 60 s where nothing is said.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_covers_the_whole_lease() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::on(Arc::clone(&database)).await;
    let elsewhere = TestServer::on(database).await;
    let client = server.client();
    let items = ["a", "b", "c"].map(|lane| item("q", lane, lane));
    push(&client, &items).await;
    let held = client.pop("q", "partitions=3&leaseSeconds=2").await;
    assert_eq!(held.len(), 3);
    let lease = &held[0]["leaseId"];
    let end = "select max(extract(epoch from lease_expires_at))::bigint from queen.log_consumers";
    let end = number(&server, end).await;
    let first = extend(&client, lease, r#"{"seconds":30}"#).await;
    assert_eq!((&first["success"], &first["renewed"]), (&json!(true), &json!(3)), "{first}");
    let shorter = extend(&client, lease, r#"{"seconds":5}"#).await;
    assert_eq!(shorter["renewed"], 3);
    assert_eq!(shorter["expiresAt"], first["expiresAt"], "never shortened");
    eventually("the first end passes", async || {
        let now = "select extract(epoch from clock_timestamp())::bigint";
        (number(&server, now).await > end + 1).then_some(())
    })
    .await;
    assert!(client.pop("q", "partitions=3").await.is_empty());
    assert!(elsewhere.client().pop("q", "partitions=3").await.is_empty());

    let ends = |answer: &Value| -> jiff::Timestamp {
        answer["expiresAt"].as_str().expect("text").parse().expect("an instant")
    };
    let before = ends(&first);
    for (body, seconds) in [("", 60), ("{}", 120), ("not json", 180), (r#"{"seconds":null}"#, 240)]
    {
        // Each is asked of a lease that ends earlier, from another broker too.
        server
            .database
            .sql()
            .await
            .batch_execute(
                "update queen.log_consumers
                    set lease_expires_at = clock_timestamp() + interval '5 seconds'",
            )
            .await
            .expect("the leases end earlier");
        let client = if seconds > 100 { elsewhere.client() } else { server.client() };
        let longer = extend(&client, lease, body).await;
        assert_eq!(longer["renewed"], 3, "{body}");
        assert!(ends(&longer) > before, "{body}: {longer}");
        let left = "select min(extract(epoch from lease_expires_at - clock_timestamp()))::bigint
                      from queen.log_consumers";
        let left = number(&server, left).await;
        assert!((50..=60).contains(&left), "{body}: {left}");
    }
    // What one lane's end takes away from the lease is not renewed any more.
    ack(&client, &held[0], "completed").await;
    assert_eq!(extend(&client, lease, "{}").await["renewed"], 2);
    server.stop().await;
    elsewhere.stop().await;
}

/// data 71: what is no live lease is not extended, and that is a 200.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_live_lease_is_extended() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a"]).await;
    let held = client.pop("q", "leaseSeconds=1").await;
    leases_over(&server).await;
    let unknown = json!("01994c11-0c22-7d90-9f31-5b7a6c8d9e0f");
    for lease in [&held[0]["leaseId"], &unknown, &json!("no-uuid")] {
        let answer = extend(&client, lease, r#"{"seconds":60}"#).await;
        assert_eq!((&answer["success"], &answer["renewed"]), (&json!(false), &json!(0)));
        assert_eq!(answer.get("expiresAt"), Some(&Value::Null), "{answer}");
    }
    let again = client.pop("q", "").await;
    assert_eq!(keys(&again), ["a"], "the expired lease was not revived");
    assert_eq!(extend(&client, &held[0]["leaseId"], "").await["renewed"], 0);
    ack(&client, &again[0], "completed").await;
    assert_eq!(extend(&client, &again[0]["leaseId"], "").await["renewed"], 0, "released");
    server.stop().await;
}

/// data 74, data 75: without a lease everything delivered is settled at once, in every lane.
#[tokio::test(flavor = "multi_thread")]
async fn auto_ack_settles_what_it_delivers() {
    let server = TestServer::start().await;
    let client = server.client();
    let items = (0..5).flat_map(|i| ["a", "b"].map(|lane| item("q", lane, &format!("{lane}{i}"))));
    push(&client, &items.collect::<Vec<_>>()).await;
    let path = "/api/v1/pop/queue/q?autoAck=true&partitions=2";
    let first = client.get(&format!("{path}&batch=8")).await.expect(200);
    assert_eq!(first["leaseId"], "");
    assert_eq!(first["partitionsClaimed"], 2);
    let first = first["messages"].as_array().expect("a list").clone();
    assert_eq!(all(&first, "leaseId"), [""; 8]);
    assert_eq!(all(&first, "deliveryAttempt"), [1; 8]);
    let rest = client.pop("q", "autoAck=true&partitions=2").await;
    assert_eq!(rest.len(), 2);
    assert!(client.pop("q", "partitions=2").await.is_empty());
    let mut found = [keys(&first), keys(&rest)].concat();
    found.sort_unstable();
    let expected: Vec<String> =
        ["a", "b"].iter().flat_map(|lane| (0..5).map(move |i| format!("{lane}{i}"))).collect();
    assert_eq!(found, expected, "each once");
    // It also ends what an expired lease left behind, and respects a live one.
    fill(&client, "q", "a", &["late"]).await;
    let held = client.pop("q", "leaseSeconds=1").await;
    assert_eq!(keys(&held), ["late"]);
    assert_eq!(keys(&delivered(&client, "q", "autoAck=true").await), ["late"]);
    assert!(client.pop("q", "").await.is_empty());
    let late = ack(&client, &held[0], "completed").await;
    super::check_refused(&late, "lease");
    server.stop().await;
}
