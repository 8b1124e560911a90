//! A plain HTTP client: what any language could send.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// Status and body of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Answer {
    /// The body, of an answer with the expected status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "body: {}", self.text);
        self.body
    }
}

/// A client of one broker.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    pub(crate) fn new(base: String) -> Self {
        Self::with_headers(base, reqwest::header::HeaderMap::new())
    }

    fn with_headers(base: String, headers: reqwest::header::HeaderMap) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .default_headers(headers)
            .timeout(Duration::from_secs(60))
            .build()
            .expect("a client");
        Self { http, base }
    }

    /// A client of the same broker whose requests name a tenant.
    pub(crate) fn for_tenant(&self, tenant: &str) -> Self {
        let value = tenant.parse().expect("a header value");
        let name = reqwest::header::HeaderName::from_static("x-queen-tenant");
        Self::with_headers(self.base.clone(), [(name, value)].into_iter().collect())
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    /// Sends; `Err` when no answer came.
    pub(crate) async fn try_send(&self, request: RequestBuilder) -> reqwest::Result<Answer> {
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status, headers, body, text })
    }

    async fn send(&self, request: RequestBuilder) -> Answer {
        self.try_send(request).await.expect("the broker answers")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: String) -> Answer {
        self.send(self.request(Method::POST, path).body(body)).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answer {
        self.send(self.request(Method::POST, path).body(body)).await
    }

    /// Pushes payloads to one partition; every one must be queued.
    pub(crate) async fn push(&self, queue: &str, partition: &str, payloads: &[Value]) -> Value {
        let items: Vec<Value> = payloads
            .iter()
            .map(|payload| json!({"queue": queue, "partition": partition, "payload": payload}))
            .collect();
        let answer = self.post("/api/v1/push", &json!({"items": items})).await.expect(201);
        for item in answer.as_array().expect("a list") {
            assert_eq!(item["status"], "queued", "{item}");
        }
        answer
    }

    /// Pops without waiting; an empty list for 204.
    pub(crate) async fn pop(&self, queue: &str, query: &str) -> Vec<Value> {
        let answer = self.get(&format!("/api/v1/pop/queue/{queue}?{query}")).await;
        if answer.status == 204 {
            assert_eq!(answer.text, "", "a 204 has no body");
            return Vec::new();
        }
        let body = answer.expect(200);
        body["messages"].as_array().expect("messages").clone()
    }

    /// Registers a query of outside workers; gives its id.
    pub(crate) async fn register(&self, name: &str, source: &str) -> String {
        let body = json!({"name": name, "source_queue": source, "config_hash": "h"});
        let answer = self.post("/streams/v1/queries", &body).await.expect(200);
        answer["query_id"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn cycle(&self, body: &Value) -> Value {
        self.post("/streams/v1/cycle", body).await.expect(200)
    }

    pub(crate) async fn status(&self, query: &str) -> Value {
        self.get(&format!("/streams/v1/queries/{query}")).await.expect(200)
    }
}
