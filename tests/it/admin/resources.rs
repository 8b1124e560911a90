//! Queues, partitions, labels and totals.

use serde_json::{Value, json};

use super::{ack, all, data, fill, kill, pop_all, settle};
use crate::support::TestServer;

/// control 15, control 17, control 18, control 26: what lists show of a queue, and the totals.
#[tokio::test(flavor = "multi_thread")]
async fn lists_and_totals_agree() {
    let server = TestServer::start().await;
    let client = server.client();
    let empty = client.get("/api/v1/resources/overview").await.expect(200);
    let figures = ["queues", "partitions", "namespaces", "tasks"].map(|key| &empty[key]);
    assert_eq!(figures, [&json!(0); 4]);
    let body = json!({"queue": "bare", "namespace": "a", "task": "t"});
    client.post("/api/v1/configure", &body).await.expect(200);
    fill(&client, "a.b.c", "p", &["1", "2", "3", "4"]).await;
    fill(&client, "a.b.c", "r", &["5"]).await;
    fill(&client, "plain", "p", &["6"]).await;
    let held =
        client.pop("a.b.c/partition/p", "batch=3&consumerGroup=g&subscriptionMode=all").await;
    ack(&client, &held[0], "completed", None).await;

    let listed = client.get("/api/v1/resources/queues?limit=1&search=x").await.expect(200);
    assert_eq!(all(&listed["queues"], "name"), ["plain", "a.b.c", "bare"]);
    let [plain, labelled, bare] = [0, 1, 2].map(|i| &listed["queues"][i]);
    assert_eq!((&plain["namespace"], &plain["task"]), (&json!("plain"), &json!("")));
    assert_eq!((&labelled["namespace"], &labelled["task"]), (&json!("a"), &json!("b")));
    assert_eq!(labelled["messages"], json!({"total": 5, "pending": 2, "processing": 2}));
    assert_eq!((&labelled["partitions"], &bare["partitions"]), (&json!(2), &json!(0)));
    assert_eq!(labelled["segments"], json!({"segments": 2, "messages": 5}));
    assert!(labelled["retainedBytes"].as_u64().is_some_and(|n| n > 5 * 16), "{labelled}");
    assert_eq!(bare["retainedBytes"], 0);
    let created = labelled["createdAt"].as_str().expect("text");
    assert!(created.len() == 24 && created.ends_with('Z'), "{created}");

    let overview = client.get("/api/v1/resources/overview").await.expect(200);
    let figures = ["queues", "partitions", "namespaces", "tasks"].map(|key| &overview[key]);
    assert_eq!(figures, [&json!(3), &json!(3), &json!(2), &json!(2)]);
    assert_eq!(
        overview["messages"],
        json!({"total": 6, "pending": 3, "processing": 2, "completed": 1, "failed": 0,
               "deadLetter": 0})
    );
    // Three partitions have 3, 1 and 1 messages left.
    let lag = &overview["lag"];
    assert_eq!((&lag["offset"]["max"], &lag["offset"]["median"]), (&json!(3.0), &json!(1.0)));
    assert!(lag["time"]["avg"].is_f64() && overview["statsAge"].is_i64(), "{overview}");
    assert_eq!(overview["throughput"]["ingestedPerSecond"], 6.0 / 300.0);

    let labels = client.get("/api/v1/resources/namespaces").await.expect(200);
    assert_eq!(
        labels["namespaces"],
        json!([{"namespace": "a", "queues": 2, "partitions": 2,
                "messages": {"total": 5, "pending": 4}},
               {"namespace": "plain", "queues": 1, "partitions": 1,
                "messages": {"total": 1, "pending": 1}}])
    );
    let labels = client.get("/api/v1/resources/tasks").await.expect(200);
    assert_eq!(all(&labels["tasks"], "task"), ["b", "t"]);
    server.stop().await;
}

/// control 19, control 20, control 25, control 27: the detail of a queue; who counts for what is
/// pending. FB-96.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_shown_by_partition() {
    let server = TestServer::start().await;
    let client = server.client();
    for keys in [["1", "2"], ["3", "4"]] {
        fill(&client, "q", "b", &keys).await;
    }
    fill(&client, "q", "a", &["5"]).await;
    fill(&client, "q", "c", &["6"]).await;
    // A group-less cursor that was given up: it holds nothing back while a group is there.
    assert_eq!(client.pop("q/partition/b", "batch=1&autoAck=true").await.len(), 1);
    let show = async || client.get("/api/v1/resources/queues/q").await.expect(200);
    let detail = show().await;
    assert_eq!(detail["partitions"][1]["stats"]["pending"], 3, "nobody else: it counts");
    settle(&client, &client.pop("q/partition/a", "").await).await;
    kill(&client, "q/partition/b", "g", "bad").await;
    let held = pop_all(&client, "q/partition/b", "g").await;
    ack(&client, &held[0], "completed", None).await;

    let detail = show().await;
    assert_eq!(all(&detail["partitions"], "name"), ["a", "b", "c"]);
    let stats = |total, pending, processing, completed, dead| {
        json!({"total": total, "pending": pending, "processing": processing,
               "completed": completed, "failed": null, "deadLetter": dead})
    };
    let found = all(&detail["partitions"], "stats");
    assert_eq!(found[0], &stats(1, 0, 0, 1, 0));
    assert_eq!(found[1], &stats(4, 2, 2, 1, 1));
    assert_eq!(found[2], &stats(1, 1, 0, 0, 0));
    assert_eq!(detail["totals"], stats(6, 3, 2, 2, 1));
    assert_eq!(detail["segments"]["messages"], 6);
    assert_eq!(detail["options"].as_object().map(serde_json::Map::len), Some(21));
    assert_eq!(detail["partitions"][1]["id"], held[0]["partitionId"]);
    let (oldest, newest) =
        (&detail["partitions"][1]["oldestMessage"], &detail["partitions"][1]["newestMessage"]);
    assert!(oldest.as_str() <= newest.as_str() && oldest.is_string(), "{detail}");
    let listed = client.get("/api/v1/resources/queues").await.expect(200);
    let messages = json!({"total": 6, "pending": 1, "processing": 2});
    assert_eq!(listed["queues"][0]["messages"], messages);

    let unknown = client.get("/api/v1/resources/queues/none").await.expect(404);
    assert_eq!(unknown, json!({"error": "Queue not found"}));
    let answer = client.get("/api/v1/resources/partitions").await.expect(404);
    assert_eq!(answer["code"], "no_such_route");
    let answer = client.delete("/api/v1/queues/q/clear").await.expect(404);
    assert_eq!(answer["code"], "no_such_route");
    server.stop().await;
}

/// control 23, control 24: what is left by group.
#[tokio::test(flavor = "multi_thread")]
async fn depth_is_what_a_group_has_left() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p", &["1", "2", "3", "4", "5"]).await;
    fill(&client, "q", "r", &["6", "7"]).await;
    for (group, n) in [("fast", 4), ("slow", 1)] {
        let held = pop_all(&client, "q/partition/p", group).await;
        settle(&client, &held[..n]).await;
    }
    let last = "consumerGroup=last&subscriptionMode=all&conflation=true&partitions=5";
    assert_eq!(client.pop("q", last).await.len(), 2);
    let depth = async |query: &str| {
        client.get(&format!("/api/v1/resources/queues/q/depth{query}")).await.expect(200)
    };
    let show = |found: &Value| {
        let keys = ["pending", "processing", "ready", "partitionsPending", "partitionsReady"];
        let figures = keys.map(|key| found[key].as_i64().expect(key));
        let effective = [&found["effectivePending"], &found["effectiveReady"]];
        (figures, effective.map(|n| n.as_i64().expect("a number")), found["conflation"] == true)
    };
    let fast = depth("?group=fast").await;
    assert_eq!((&fast["queue"], &fast["group"]), (&json!("q"), &json!("fast")));
    assert_eq!(show(&fast), ([3, 1, 2, 2, 1], [3, 2], false));
    let rows = json!([{"partition": "p", "pending": 1, "processing": 1, "ready": 0},
                      {"partition": "r", "pending": 2, "processing": 0, "ready": 2}]);
    assert_eq!(fast["partitions"], rows);
    assert_eq!(show(&depth("?group=slow").await), ([6, 4, 2, 2, 1], [6, 2], false));
    assert_eq!(show(&depth("?group=none").await), ([7, 0, 7, 2, 2], [7, 7], false));
    assert_eq!(show(&depth("?group=last").await), ([7, 7, 0, 2, 0], [2, 0], true));
    let queue = depth("?group=").await;
    assert_eq!(queue["group"], Value::Null);
    assert_eq!(show(&queue), ([7, 7, 0, 2, 0], [7, 0], false), "the slowest group, all leases");
    client.delete("/api/v1/consumer-groups/last").await.expect(200);
    assert_eq!(show(&depth("").await).0[0], 4 + 2, "the slowest group on p, nobody on r");
    client.get("/api/v1/resources/queues/none/depth").await.expect(404);
    server.stop().await;
}

/// control 21, control 22, control 28: names of every kind on every route, and a clean end.
/// FB-81.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_every_kind_work_on_every_route() {
    let server = TestServer::start().await;
    let client = server.client();
    let (queue, partition, group) = ("a b/ü:%2F", "p/ö 1", "g/1 ?");
    let spelled = |name: &str| {
        percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let (q, p, g) = (spelled(queue), spelled(partition), spelled(group));
    for round in 0..2 {
        fill(&client, queue, partition, &["t/1", "t/2"]).await;
        let held = pop_all(&client, &q, &g).await;
        assert_eq!(data(&held), ["t/1", "t/2"], "round {round}: no old cursor applies");
        let entry = ack(&client, &held[0], "dlq", None).await;
        assert_eq!(entry["dlq"], true, "{entry}");
        let id = held[0]["partitionId"].as_str().expect("text");
        for path in [
            format!("resources/queues/{q}"),
            format!("resources/queues/{q}/depth?group={g}"),
            format!("status/queues/{q}"),
            format!("messages/{id}/t%2F2"),
        ] {
            client.get(&format!("/api/v1/{path}")).await.expect(200);
        }
        let found = client.get(&format!("/api/v1/messages?queue={q}&partition={p}")).await;
        assert_eq!(found.expect(200)["total"], 2);
        let found = client.get(&format!("/api/v1/dlq?queue={q}&consumerGroup={g}")).await;
        assert_eq!(found.expect(200)["messages"][0]["transactionId"], "t/1");
        let found = client.get(&format!("/api/v1/consumer-groups/{g}")).await.expect(200);
        assert_eq!(found[queue]["partitions"][0]["partition"], partition);
        let seek = format!("/api/v1/consumer-groups/{g}/queues/{q}/partitions/{p}/seek");
        let moved = client.post(&seek, &json!({})).await.expect(200);
        assert_eq!((&moved["partitionName"], &moved["updated"]), (&json!(partition), &json!(true)));
        client.post(&format!("/api/v1/messages/{id}/t%2F1/retry"), &json!({})).await.expect(200);
        for existed in [true, false] {
            let gone = client.delete(&format!("/api/v1/resources/queues/{q}")).await.expect(200);
            assert_eq!((&gone["deleted"], &gone["existed"]), (&json!(existed), &json!(existed)));
        }
        client.get(&format!("/api/v1/messages/{id}/t%2F2")).await.expect(404);
    }
    server.stop().await;
}
