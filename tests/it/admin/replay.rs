//! Dead letters that go back into a log.

use serde_json::{Value, json};

use super::{address, all, fill, kill, pop_all, settle};
use crate::support::{Client, TestServer};

const SOME_LEFT: &str = "select count(*) from queen.log_dead_letters";

async fn records(client: &Client) -> Vec<Value> {
    let found = client.get("/api/v1/dlq").await.expect(200);
    found["messages"].as_array().expect("a list").clone()
}

fn path(record: &Value) -> String {
    format!("/api/v1/dlq/{}/replay", record["id"].as_str().expect("text"))
}

/// control 38, control 39: the newest record of an address goes to the tail, for every group; the
/// other group's record stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_takes_the_newest_record_of_an_address() {
    let server = TestServer::start().await;
    let client = server.client();
    let items = json!({"items": [{"queue": "q", "partition": "p", "transactionId": "a/1",
                                  "payload": {"n": 1}}]});
    client.post("/api/v1/push", &items).await.expect(201);
    for group in ["g", "h"] {
        kill(&client, "q", group, group).await;
    }
    let before = records(&client).await;
    assert_eq!(before[0]["consumerGroup"], "h");
    let retry = format!("{}/retry", address(&before[0]).replace("a/1", "a%2F1"));
    let parked = {
        let client = client.clone();
        tokio::spawn(
            async move { client.pop("q", "consumerGroup=g&wait=true&timeout=30000").await },
        )
    };
    let answer = client.post_text(&retry, String::new()).await.expect(200);
    assert_eq!(
        answer,
        json!({"success": true, "result": "moved", "queue": "q", "partition": "p",
               "consumerGroup": "h", "dlqId": before[0]["id"], "originalTransactionId": "a/1",
               "dlqRowRemoved": true,
               "replayedAs": {"index": 0, "message_id": answer["replayedAs"]["message_id"],
                              "transaction_id": format!("dlq:{}", before[0]["id"].as_str().expect("id")),
                              "queueName": "q", "status": "queued", "offset": 1}})
    );
    assert_eq!(all(&json!(records(&client).await), "id"), [&before[1]["id"]]);
    let woken = parked.await.expect("no panic");
    assert_eq!((&woken[0]["data"], woken.len()), (&json!({"n": 1}), 1), "a waiting pop is woken");
    assert_eq!(woken[0]["transactionId"], answer["replayedAs"]["transaction_id"]);
    assert_eq!(woken[0]["id"], answer["replayedAs"]["message_id"]);
    assert_eq!((&woken[0]["traceId"], &woken[0]["producerSub"]), (&Value::Null, &Value::Null));
    assert_eq!(pop_all(&client, "q", "h").await.len(), 1, "visible to every group");
    settle(&client, &woken).await;
    server.stop().await;
}

/// control 40: replays of one record at once append one message; everybody else learns that it is
/// gone. FB-52.
#[tokio::test(flavor = "multi_thread")]
async fn replays_at_once_append_one_message() {
    let servers = {
        let first = TestServer::start().await;
        let second = TestServer::on(std::sync::Arc::clone(&first.database)).await;
        [first, second]
    };
    let client = servers[0].client();
    let body = json!({"queue": "q", "options": {"dedupWindowSeconds": 0}});
    client.post("/api/v1/configure", &body).await.expect(200);
    fill(&client, "q", "p", &["1", "2", "3", "4", "5", "6"]).await;
    for n in 0..6_u32 {
        kill(&client, "q", "g", "bad").await;
        let record = records(&client).await[0].clone();
        let calls = (0..6).map(|i| {
            let (client, record) = (servers[i % 2].client(), record.clone());
            let retry = format!("{}/retry", address(&record));
            tokio::spawn(async move {
                let path = if i < 3 { path(&record) } else { retry };
                client.post(&path, &json!({})).await
            })
        });
        let mut moved = 0;
        for call in calls.collect::<Vec<_>>() {
            let answer = call.await.expect("no panic");
            match answer.status {
                200 => moved += 1,
                404 => assert_eq!(answer.body["error"], "Message not found", "{}", answer.text),
                other => panic!("{other}: {}", answer.text),
            }
        }
        assert_eq!(moved, 1);
        let found = client.get("/api/v1/messages?queue=q&limit=1000").await.expect(200);
        assert_eq!(found["total"], 7 + n);
        assert!(records(&client).await.is_empty());
    }
    for server in servers {
        server.stop().await;
    }
}

/// control 41, control 42: where a replay goes; a message that is there already is not stored
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_may_go_elsewhere_and_is_no_duplicate() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "q", "p 1", &["1", "2", "3"]).await;
    for _ in 0..3 {
        kill(&client, "q", "g", "bad").await;
    }
    let [third, second, first] = records(&client).await.try_into().expect("three");
    for body in [json!({"queue": " "}), json!({"partition": 5}), json!([])] {
        client.post(&path(&first), &body).await.expect(400);
    }
    let other = client.post(&path(&first), &json!({"queue": " new.q "})).await.expect(200);
    assert_eq!((&other["queue"], &other["partition"]), (&json!("new.q"), &json!("p 1")));
    assert_eq!(other["replayedAs"]["offset"], 0);
    let other = client.post(&path(&second), &json!({"partition": "p2"})).await.expect(200);
    assert_eq!((&other["queue"], &other["partition"]), (&json!("q"), &json!("p2")));
    assert_eq!(super::data(&pop_all(&client, "new.q", "g").await), ["1"]);
    assert_eq!(super::data(&pop_all(&client, "q/partition/p2", "g").await), ["2"]);

    let id = format!("dlq:{}", third["id"].as_str().expect("text"));
    fill(&client, "q", "p 1", &[&id]).await;
    let same = client.post_text(&path(&third), String::new()).await.expect(200);
    let stored = &same["replayedAs"];
    assert_eq!((&same["success"], &same["result"]), (&json!(true), &json!("duplicate")));
    assert_eq!((&same["dlqRowRemoved"], &stored["status"]), (&json!(false), &json!("duplicate")));
    assert_eq!(stored["message_id"], uuid::Uuid::nil().to_string());
    assert_eq!((&stored["transaction_id"], &stored["offset"]), (&json!(id), &json!(3)));
    assert_eq!(all(&json!(records(&client).await), "id"), [&third["id"]], "the record is kept");
    let left = server.database.sql().await.query_one(SOME_LEFT, &[]).await.expect("a number");
    assert_eq!(left.get::<_, i64>(0), 1);

    let unknown = json!({"id": uuid::Uuid::now_v7().to_string()});
    for gone in [first, unknown, json!({"id": "nonsense"})] {
        let answer = client.post(&path(&gone), &json!({})).await.expect(404);
        assert_eq!((&answer["success"], &answer["result"]), (&json!(false), &json!("gone")));
        assert_eq!(
            (&answer["dlqId"], &answer["error"]),
            (&gone["id"], &json!("Message not found"))
        );
    }
    server.stop().await;
}
