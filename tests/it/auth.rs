//! Bearer tokens and access levels.

use std::sync::Arc;

use foldmq::http::AuthConfig;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Database, TestServer};

const SECRET: &str = "a secret that nobody prints";

async fn guarded() -> TestServer {
    let database = Arc::new(Database::new().await);
    TestServer::with(database, |config| {
        config.auth = Some(AuthConfig {
            algorithm: "HS256".to_owned(),
            secret: Some(SECRET.to_owned()),
            ..AuthConfig::default()
        });
    })
    .await
}

fn token(algorithm: Algorithm, secret: &str, claims: &Value) -> String {
    let key = EncodingKey::from_secret(secret.as_bytes());
    jsonwebtoken::encode(&Header::new(algorithm), claims, &key).expect("a token")
}

fn role(role: &str) -> String {
    token(Algorithm::HS256, SECRET, &json!({"role": role, "sub": "till-7"}))
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    authorization: &str,
    body: &Value,
) -> Answer {
    let request = client.request(method, path).header("authorization", authorization);
    client.try_send(request.body(body.to_string())).await.expect("an answer")
}

/// streams C3: a read-only credential reads state, and neither registers nor commits.
#[tokio::test(flavor = "multi_thread")]
async fn each_level_passes_its_own_routes() {
    let server = guarded().await;
    let client = server.client();
    let ids = json!({"query_id": uuid::Uuid::nil(), "partition_id": uuid::Uuid::nil()});
    let register = json!({"name": "n", "source_queue": "q", "config_hash": "h"});
    let push = json!({"items": []});
    let nothing = json!({});
    let routes = [
        (
            Method::POST,
            "/streams/v1/state/get",
            &ids,
            ["read-only", "read-write", "admin"].as_slice(),
        ),
        (Method::POST, "/streams/v1/cycle", &ids, &["read-write", "admin"]),
        (Method::POST, "/streams/v1/queries", &register, &["read-write", "admin"]),
        (Method::GET, "/streams/v1/queries", &nothing, &["read-only", "read-write", "admin"]),
        (Method::POST, "/api/v1/push", &push, &["write-only", "read-write", "admin"]),
        (Method::GET, "/api/v1/pop/queue/q", &nothing, &["read-write", "admin"]),
        (Method::POST, "/api/v1/transaction", &json!({"operations": []}), &["read-write", "admin"]),
        (Method::DELETE, "/api/v1/resources/queues/q", &nothing, &["admin"]),
        (Method::GET, "/health", &nothing, &["read-only", "write-only", "nobody"]),
    ];
    for (method, path, body, passing) in routes {
        for name in ["read-only", "write-only", "read-write", "admin", "nobody"] {
            let bearer = format!("Bearer {}", role(name));
            let answer = send(&client, method.clone(), path, &bearer, body).await;
            if passing.contains(&name) || path == "/health" {
                assert!(answer.status < 400, "{name} {method} {path}: {}", answer.text);
            } else {
                assert_eq!(answer.status, 403, "{name} {method} {path}");
                assert_eq!(answer.body, json!({"error": "Insufficient permissions"}));
            }
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_is_refused_with_its_reason() {
    let server = guarded().await;
    let client = server.client();
    let path = "/api/v1/push";
    let none = client.post(path, &json!({"items": []})).await;
    assert_eq!((none.status, &none.body["error"]), (401, &json!("Authentication required")));
    let good = json!({"role": "admin"});
    let cases = [
        ("garbage".to_owned(), "Bad token header"),
        (token(Algorithm::HS512, SECRET, &good), "Unsupported token algorithm"),
        (token(Algorithm::HS256, "other", &good), "Invalid token signature"),
        (token(Algorithm::HS256, SECRET, &json!({"role": "admin", "exp": 1})), "Token has expired"),
        (
            token(Algorithm::HS256, SECRET, &json!({"role": "admin", "nbf": 9_999_999_999_i64})),
            "Token not yet valid",
        ),
    ];
    for (bad, words) in cases {
        let bearer = format!("bearer {bad}");
        let refused = send(&client, Method::POST, path, &bearer, &json!({"items": []})).await;
        assert_eq!((refused.status, &refused.body["error"]), (401, &json!(words)));
    }
    // The scheme's case does not matter, and a bare token is accepted; roles may be a list.
    let listed = token(Algorithm::HS256, SECRET, &json!({"roles": ["x", "write-only"]}));
    for authorization in [format!("BEARER {listed}"), listed] {
        let answer = send(&client, Method::POST, path, &authorization, &json!({"items": []})).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
    }
    server.stop().await;
}

/// data 15: the producer of a message is the subject of the token that pushed it, on push and
/// transaction alike, whatever the body says.
#[tokio::test(flavor = "multi_thread")]
async fn messages_name_the_subject_of_their_token() {
    let server = guarded().await;
    let client = server.client();
    let bearer = format!("Bearer {}", role("admin"));
    let item = json!({"queue": "q", "payload": 1, "producerSub": "forged"});
    let pushed = json!({"items": [item]});
    assert_eq!(send(&client, Method::POST, "/api/v1/push", &bearer, &pushed).await.status, 201);
    let operation = json!({"type": "push", "queue": "q", "payload": 2, "producerSub": "forged"});
    let body = json!({"operations": [operation]});
    let done = send(&client, Method::POST, "/api/v1/transaction", &bearer, &body).await;
    assert_eq!(done.body["success"], true, "{}", done.text);
    let path = "/api/v1/pop/queue/q?subscriptionMode=all&batch=10";
    let popped = send(&client, Method::GET, path, &bearer, &json!({})).await;
    let messages = popped.body["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert_eq!(message["producerSub"], "till-7", "{message}");
    }
    server.stop().await;
}
