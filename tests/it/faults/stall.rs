//! A database that takes requests and answers nothing.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{REQUEST_MAX, STATEMENT, World};
use crate::support::{eventually, guest};

impl World {
    /// Opens `n` connections, so that every request has one of its own when the silence begins.
    async fn warm(&self, n: usize) {
        self.proxy.stall(true);
        let asked = join_all((0..n).map(|_| self.client.get("/health")));
        let open = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            self.proxy.stall(false);
        };
        let (answers, ()) = tokio::join!(asked, open);
        assert!(answers.iter().all(|answer| answer.status == 200), "the pool is warm");
    }
}

/// Every route answers within a bound while the database is silent, and works again afterwards;
/// what is not of the database answers at once.
#[tokio::test(flavor = "multi_thread")]
async fn no_request_outlives_a_silent_database() {
    let world = World::with(32).await;
    let client = &world.client;
    guest::host_probe(client, "hosted", "h", json!({})).await;
    client.push("q", "p", &[json!(1), json!(2)]).await;
    let query = client.register("outside", "q").await;
    let popped = client.pop("q", "batch=1&consumerGroup=g&subscriptionMode=all").await;
    let first = &popped[0];
    let ack = json!({"transactionId": first["transactionId"], "leaseId": first["leaseId"],
                     "partitionId": first["partitionId"], "consumerGroup": "g",
                     "status": "completed"});
    let mut op = ack.clone();
    op["type"] = json!("ack");
    let push = |queue: &str| json!({"items": [{"queue": queue, "payload": 1}]});
    let cycle = |sink: &str| {
        json!({"query_id": query, "partition_id": first["partitionId"],
               "push_items": [{"queue": sink, "payload": 1}]})
    };
    let lease = first["leaseId"].as_str().expect("a lease");
    let requests: Vec<(Method, String, Value)> = vec![
        (Method::POST, "/api/v1/push".into(), push("q")),
        (Method::POST, "/api/v1/push".into(), push("unborn")),
        (Method::GET, "/api/v1/pop/queue/q?consumerGroup=other".into(), Value::Null),
        (Method::GET, "/api/v1/pop/queue/q?wait=true&timeout=3000".into(), Value::Null),
        (Method::GET, "/api/v1/pop?namespace=n&wait=true&timeout=3000".into(), Value::Null),
        (Method::POST, "/api/v1/ack".into(), ack),
        (Method::POST, format!("/api/v1/lease/{lease}/extend"), json!({"seconds": 60})),
        (Method::POST, "/api/v1/transaction".into(), json!({"operations": [op]})),
        (Method::POST, "/api/v1/configure".into(), json!({"queue": "c", "options": {}})),
        (Method::DELETE, "/api/v1/resources/queues/c".into(), Value::Null),
        (
            Method::POST,
            "/streams/v1/queries".into(),
            json!({"name": "new", "source_queue": "q", "config_hash": "h"}),
        ),
        (Method::POST, "/streams/v1/cycle".into(), cycle("q")),
        (Method::POST, "/streams/v1/cycle".into(), cycle("unborn.too")),
        (
            Method::POST,
            "/streams/v1/state/get".into(),
            json!({"query_id": query, "partition_id": first["partitionId"]}),
        ),
        (Method::GET, "/streams/v1/queries".into(), Value::Null),
        (Method::GET, "/streams/v1/queries/hosted".into(), Value::Null),
        (Method::POST, "/streams/v1/queries/hosted/pause".into(), json!({})),
        (Method::DELETE, "/streams/v1/queries/hosted".into(), Value::Null),
        (Method::GET, "/streams/v1/modules".into(), Value::Null),
        (Method::GET, "/health".into(), Value::Null),
    ];
    world.warm(requests.len()).await;
    world.proxy.stall(true);
    let asked = Instant::now();
    let answers = join_all(requests.iter().map(|(method, path, body)| async move {
        let mut request = client.request(method.clone(), path);
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        let answer = client.try_send(request.timeout(REQUEST_MAX)).await;
        (path, answer.map(|a| (a.status, asked.elapsed())).ok())
    }));
    let calm = async {
        // Some time into the silence, when every connection waits.
        tokio::time::sleep(STATEMENT).await;
        for path in ["/status", "/metrics", "/metrics/prometheus"] {
            let asked = Instant::now();
            client.get(path).await;
            assert!(asked.elapsed() < Duration::from_secs(1), "{path} took {:?}", asked.elapsed());
        }
    };
    let (answers, ()) = tokio::join!(answers, calm);
    let hung: Vec<_> = answers.iter().filter(|(_, answer)| answer.is_none()).collect();
    assert!(hung.is_empty(), "without an answer within {REQUEST_MAX:?}: {hung:?}");
    world.proxy.stall(false);
    eventually("the broker is healthy", async || {
        (client.get("/health").await.status == 200).then_some(())
    })
    .await;
    let message = [json!(3)];
    eventually("a push is stored", async || {
        let body = json!({"items": [{"queue": "after", "partition": "p", "payload": message[0]}]});
        (client.post("/api/v1/push", &body).await.status == 201).then_some(())
    })
    .await;
    let got = client.pop("after", "consumerGroup=g&subscriptionMode=all").await;
    assert!(!got.is_empty());
    world.stop().await;
}
