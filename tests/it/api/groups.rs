//! Consumer groups: where they start, what they are told, and their end with the queue.

use serde_json::{Value, json};

use super::{ack, ack_of, all, check_entry, fill, item, keys, number, push};
use crate::support::TestServer;

/// data 111, data 113, data 118, data 119, data 123: every group has cursors of its own; `all` and
/// unknown words start at the beginning, as the queue mode always does.
#[tokio::test(flavor = "multi_thread")]
async fn every_group_sees_the_backlog_it_asks_for() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["a", "b", "c"]).await;
    for query in [
        "consumerGroup=g&subscriptionMode=all",
        "consumerGroup=h&subscriptionMode=ALL",
        "consumerGroup=i&subscriptionMode=whatever",
        "subscriptionMode=new",
        "subscriptionFrom=now",
    ] {
        let held = client.pop("q", query).await;
        if query == "subscriptionFrom=now" {
            assert!(held.is_empty(), "the queue mode, leased above");
            continue;
        }
        assert_eq!(keys(&held), ["a", "b", "c"], "{query}");
        if query.contains("=g") {
            check_entry(&ack(&client, &held[2], "completed").await, [true, true, false, false]);
        } else if query.contains("=h") {
            check_entry(&ack(&client, &held[0], "completed").await, [true, false, false, false]);
        }
    }
    fill(&client, "q", "p", &["d"]).await;
    assert_eq!(keys(&client.pop("q", "consumerGroup=g").await), ["d"]);
    let cursors = "select string_agg(g.name || ' ' || c.committed, ', ' order by g.name)
                     from queen.log_consumers c join queen.log_groups g using (group_no)";
    let row = server.database.sql().await.query_one(cursors, &[]).await.expect(cursors);
    assert_eq!(row.get::<_, String>(0), "__QUEUE_MODE__ -1, g 2, h 0, i -1");
    server.stop().await;
}

/// data 112, data 114, data 115, data 117, data 123: a group in `new` mode starts behind what is
/// there at its first pop, whatever later pops say, and misses nothing that comes afterwards, on
/// old and new partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_misses_nothing_after_its_first_pop() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["old"]).await;
    let modes = [
        "",
        "&subscriptionMode=new",
        "&subscriptionMode=new-only",
        "&subscriptionMode=New_Only",
        "&subscriptionMode=newonly",
        "&subscriptionMode=",
    ];
    for (i, mode) in modes.iter().enumerate() {
        // The pinned route registers as well, even on a partition that does not exist.
        for path in ["q", "q/partition/p", "q/partition/unborn", "missing"] {
            let group = format!("consumerGroup={}{i}", path.replace('/', "-"));
            let found = client.pop(path, &format!("{group}{mode}")).await;
            assert!(found.is_empty(), "{path} {mode}: {found:?}");
        }
    }
    for queue in ["q", "missing"] {
        fill(&client, queue, "p", &["new"]).await;
        fill(&client, queue, "unborn", &["first", "second"]).await;
    }
    for (i, _) in modes.iter().enumerate() {
        for path in ["q", "q/partition/p", "q/partition/unborn", "missing"] {
            let query = format!(
                "consumerGroup={}{i}&subscriptionMode=all&subscriptionFrom=2001-01-01T00:00:00Z",
                path.replace('/', "-")
            );
            let queue = path.split('/').next().expect("a queue");
            let found = client.pop(queue, &format!("{query}&partitions=5")).await;
            let mut found = keys(&found);
            found.sort_unstable();
            assert_eq!(found, ["first", "new", "second"], "{path} {i}");
        }
    }
    server.stop().await;
}

/// data 116, data 117: an instant starts a group at the first message committed at or after it, and
/// wins over the mode.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_may_start_at_an_instant() {
    let server = TestServer::start().await;
    let client = server.client();
    for key in ["a", "b", "c"] {
        push(&client, &[item("q", "p", key), item("q", "r", key)]).await;
    }
    let pinned = client.pop("q/partition/p", "").await;
    let at = pinned[1]["createdAt"].as_str().expect("text");
    let instant: jiff::Timestamp = at.parse().expect("an instant");
    let elsewhere = instant.to_zoned(jiff::tz::TimeZone::fixed(jiff::tz::offset(2)));
    let elsewhere = elsewhere.strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string();
    let after = (instant + jiff::SignedDuration::from_micros(1)).to_string();
    for (group, from, expected) in [
        ("exact", at, vec!["b", "c"]),
        ("zone", &elsewhere.replace('+', "%2B"), vec!["b", "c"]),
        ("after", &after, vec!["c"]),
        ("early", "2001-01-01T00:00:00Z", vec!["a", "b", "c"]),
        ("future", "2999-01-01T00:00:00Z", vec![]),
        ("now", "now", vec![]),
        ("unreadable", "yesterday", vec![]),
    ] {
        for mode in ["new", "all"] {
            let query = format!("consumerGroup={group}-{mode}");
            let start = format!("{query}&subscriptionMode={mode}&subscriptionFrom={from}");
            let found = client.pop("q/partition/p", &start).await;
            assert_eq!(keys(&found), expected, "{group} {mode}");
        }
    }
    // A group whose instant lies ahead stands at the tail: what comes next is delivered.
    fill(&client, "q", "p", &["d"]).await;
    for group in ["future-new", "now-all", "unreadable-new"] {
        let found = client.pop("q/partition/p", &format!("consumerGroup={group}")).await;
        assert_eq!(keys(&found), ["d"], "{group}");
    }
    server.stop().await;
}

/// data 122: a deleted queue leaves nothing behind; a push makes it anew, under new partition ids,
/// and its groups start again.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_queue_leaves_nothing_behind() {
    let server = TestServer::start().await;
    let client = server.client();
    let group = "consumerGroup=g&subscriptionMode=all&partitions=5";
    push(&client, &[item("q", "p", "a"), item("q", "p", "b"), item("q", "r", "c")]).await;
    fill(&client, "kept", "p", &["k"]).await;
    let held = client.pop("q", group).await;
    assert_eq!(held.len(), 3);
    check_entry(&ack(&client, &held[0], "dlq").await, [true, true, true, false]);
    client.pop("kept", group).await;
    let answer = client.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!((&answer["deleted"], &answer["existed"]), (&json!(true), &json!(true)));
    for (table, left) in [
        ("queues", 1),
        ("log_partitions", 1),
        ("log_segments", 1),
        ("log_groups", 1),
        ("log_consumers", 1),
        ("log_dead_letters", 0),
    ] {
        let found = number(&server, &format!("select count(*) from queen.{table}")).await;
        assert_eq!(found, left, "{table}");
    }
    let answer = client.delete("/api/v1/resources/queues/q").await.expect(200);
    assert_eq!((&answer["deleted"], &answer["existed"]), (&json!(false), &json!(false)));
    assert!(client.pop("q", "").await.is_empty());

    let again = push(&client, &[item("q", "p", "a"), item("q", "r", "c")]).await;
    assert_eq!(all(&again, "status"), ["queued", "queued"]);
    assert_eq!(all(&again, "offset"), [0, 0]);
    let found = client.pop("q", group).await;
    assert_eq!(found.len(), 2);
    let old: Vec<&Value> = all(&held, "partitionId");
    for message in &found {
        assert!(!old.contains(&&message["partitionId"]), "{message}");
        check_entry(&ack(&client, message, "completed").await, [true, true, false, false]);
    }
    let late = super::ack_body(&client, &ack_of(&held[1], "completed")).await;
    super::check_refused(&late, "consumer not found");
    assert!(client.pop("q", group).await.is_empty());
    server.stop().await;
}
