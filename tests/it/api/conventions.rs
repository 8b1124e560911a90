//! What a client may rely on at every route: section 1 of the contract.

use std::sync::Arc;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{ack, ack_body, ack_of, fill, item, keys, number};
use crate::support::{Answer, Client, Database, TestServer};

const PUSH: &str = "/api/v1/push";

fn pushing(client: &Client, key: &str) -> RequestBuilder {
    let body = json!({"items": [item("q", "p", key)]});
    client.request(Method::POST, PUSH).body(body.to_string())
}

async fn send(client: &Client, request: RequestBuilder) -> Answer {
    client.try_send(request).await.expect("the broker answers")
}

/// data 1.1: a body is JSON whatever its type, and answers are JSON; no body is an empty object;
/// unknown keys are ignored, `null` is absent; with auth off a token is not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_json_whatever_they_are_called() {
    let server = TestServer::start().await;
    let client = server.client();
    for kind in [None, Some("text/plain"), Some("application/json; charset=utf-8")] {
        let mut request = pushing(&client, kind.unwrap_or("absent"));
        if let Some(kind) = kind {
            request = request.header(CONTENT_TYPE, kind);
        }
        let request = request.header(AUTHORIZATION, "Bearer nonsense");
        let answer = send(&client, request.header(ACCEPT_ENCODING, "identity, zstd")).await;
        assert_eq!(answer.headers["content-type"], "application/json");
        assert_eq!(answer.headers.get("content-encoding"), None);
        assert_eq!(answer.expect(201)[0]["status"], "queued", "{kind:?}");
    }
    let odd = json!({"queue": "r", "partition": null, "transactionId": null, "payload": {},
                     "namespace": null, "priority": 5});
    let body = json!({"items": [odd], "bufferMs": 100, "bufferMax": 10});
    client.post(PUSH, &body).await.expect(201);
    let message = client.pop("r", "nonsense=1&nonsense=%00").await.remove(0);
    assert_eq!(message["partition"], "Default");
    let mut odd = ack_of(&message, "completed");
    for (key, value) in [("consumerGroup", Value::Null), ("error", Value::Null), ("x", json!([]))] {
        odd[key] = value;
    }
    assert_eq!(ack_body(&client, &odd).await["success"], true);

    let empty = async |path| {
        let answer = send(&client, client.request(Method::POST, path)).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        answer
    };
    let entry = empty("/api/v1/ack").await.expect(200)[0].clone();
    assert_eq!((&entry["success"], &entry["transactionId"]), (&json!(false), &json!("")));
    assert_eq!(empty("/api/v1/ack/batch").await.expect(200), json!([]));
    assert_eq!(empty("/api/v1/lease/x/extend").await.expect(200)["renewed"], 0);
    for path in [PUSH, "/api/v1/configure"] {
        assert!(empty(path).await.expect(400)["error"].is_string(), "{path}");
    }
    for path in [PUSH, "/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"] {
        let answer = client.post_text(path, "{\"items\":[".to_owned()).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        let answer = answer.expect(400);
        assert!(answer["error"].is_string(), "{path}: {answer}");
    }
    server.stop().await;
}

/// data 1.1, data 1.2: what a route cannot take is refused with the error body.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_route_takes_is_refused() {
    let database = Arc::new(Database::new().await);
    let server = TestServer::with(database, |config| config.body_bytes_max = 10_000).await;
    let client = server.client();
    for (method, path) in [
        (Method::GET, "/api/v1/nothing"),
        (Method::POST, "/api/v1/push/more"),
        (Method::GET, "/api"),
        (Method::GET, "/api/v1/pop/queue/a/b"),
        (Method::DELETE, "/api/v2/push"),
    ] {
        let answer = send(&client, client.request(method, path)).await.expect(404);
        assert_eq!(answer, json!({"error": "Not Found", "code": "no_such_route"}), "{path}");
    }
    let encoded = pushing(&client, "a").header(CONTENT_ENCODING, "gzip");
    assert!(send(&client, encoded).await.expect(415)["error"].is_string());
    let identity = pushing(&client, "a").header(CONTENT_ENCODING, "identity");
    send(&client, identity).await.expect(201);
    let items = |bytes: usize| {
        let body = json!({"items": [{"queue": "big", "payload": ""}]}).to_string();
        let padding = "x".repeat(bytes - body.len());
        body.replace("\"\"", &format!("\"{padding}\""))
    };
    client.post_text(PUSH, items(10_000)).await.expect(201);
    assert!(client.post_text(PUSH, items(10_001)).await.expect(413)["error"].is_string());
    for path in ["/queue/a%00b", "/queue/a/partition/%00", "/queue/%ff", "/queue/a%1fb"] {
        let answer = client.get(&format!("/api/v1/pop{path}")).await.expect(400);
        assert!(answer["error"].is_string(), "{path}");
        assert_eq!(answer.get("code"), None, "{path}");
    }
    assert_eq!(number(&server, "select count(*) from queen.queues").await, 2);
    server.stop().await;
}

/// data 1.1: a pop is not cached, HEAD does not pop, and both spellings of a space are one name.
#[tokio::test(flavor = "multi_thread")]
async fn pops_are_for_the_one_who_asks() {
    let server = TestServer::start().await;
    let client = server.client();
    fill(&client, "my q", "my p", &["a", "b"]).await;
    let path = "/api/v1/pop/queue/my%20q/partition/my%20p";
    let head = send(&client, client.request(Method::HEAD, path)).await;
    assert_eq!(head.status, 405);
    let answer =
        client.get(&format!("{path}?batch=1&consumerGroup=my+g&subscriptionMode=all")).await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.headers["content-type"], "application/json");
    let answer = answer.expect(200);
    assert_eq!(answer["consumerGroup"], "my g");
    assert_eq!(answer["messages"][0]["deliveryAttempt"], 1);
    ack(&client, &answer["messages"][0], "completed").await;
    let answer = client.get(&format!("{path}?consumerGroup=my%20g")).await.expect(200);
    assert_eq!(keys(answer["messages"].as_array().expect("a list")), ["b"], "the same group");
    server.stop().await;
}

/// data 1.4: identifiers and times have their forms, and no more is shown than the contract names.
#[tokio::test(flavor = "multi_thread")]
async fn identifiers_have_their_forms() {
    let server = TestServer::start().await;
    let client = server.client();
    let pushed = fill(&client, "q", "p", &["a", "b"]).await;
    let answer = client.get("/api/v1/pop/queue/q").await.expect(200);
    let version = |value: &Value| {
        let text = value.as_str().expect("text");
        let id: Uuid = text.parse().expect("a uuid");
        assert_eq!(id.hyphenated().to_string(), text, "lowercase and hyphenated");
        id.get_version_num()
    };
    assert_eq!(version(&pushed[0]["message_id"]), 7);
    assert_eq!(version(&answer["leaseId"]), 7);
    let partition = answer["partitionId"].clone();
    version(&partition);
    let [a, b] = [&answer["messages"][0], &answer["messages"][1]];
    for message in [a, b] {
        let at = message["createdAt"].as_str().expect("text");
        let shape: String = at.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert_eq!(shape, "9999-99-99T99:99:99.999999Z", "{at}");
        let names: Vec<&str> =
            message.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut expected = [
            "id",
            "transactionId",
            "traceId",
            "data",
            "producerSub",
            "createdAt",
            "partitionId",
            "partition",
            "leaseId",
            "consumerGroup",
            "deliveryAttempt",
        ];
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
    assert_eq!(a["createdAt"], b["createdAt"], "one push, one time");
    assert!(a["id"].as_str() < b["id"].as_str(), "ids sort in offset order");
    let names: Vec<&str> =
        answer.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "consumerGroup",
            "leaseId",
            "messages",
            "partition",
            "partitionId",
            "partitionsClaimed",
            "queue",
            "success"
        ]
    );
    // A partition keeps its id; leases and message ids are new ones.
    ack(&client, b, "completed").await;
    fill(&client, "q", "p", &["c"]).await;
    let later = client.get("/api/v1/pop/queue/q").await.expect(200);
    assert_eq!(later["partitionId"], partition);
    assert_ne!(later["leaseId"], answer["leaseId"]);
    server.stop().await;
}
