//! Failures as answers: status, public text, and a cause that only the log shows.

use std::borrow::Cow;
use std::error::Error;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

use crate::{db, telemetry};

/// Seconds after which a caller may try again where this server is at fault.
const RETRY_AFTER_S: u32 = 1;

/// An answer that is a failure of the whole request.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Option<&'static str>,
    text: Cow<'static, str>,
    fields: Vec<(&'static str, Value)>,
    retry_after_s: Option<u32>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code: None,
            text: text.into(),
            fields: Vec::new(),
            retry_after_s: None,
            source: None,
        }
    }

    /// 400: the request cannot succeed as it is.
    pub(super) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// 404 with a text that names what was not found.
    pub(super) fn not_found(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::NOT_FOUND, text)
    }

    /// 500 for a failed call of the store, whichever way it failed.
    pub(super) fn store_failed(cause: db::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the store failed").source(cause)
    }

    /// 503: the server is stopping, nothing was done.
    pub(super) fn stopping() -> Self {
        Self::unavailable("the broker is stopping; nothing was done, a retry is safe")
    }

    /// 503 with `Retry-After`.
    pub(super) fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, text);
        error.retry_after_s = Some(RETRY_AFTER_S);
        error
    }

    /// Shows a stable code in the body.
    pub(super) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Adds a key to the body.
    pub(super) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((key, value.into()));
        self
    }

    /// Keeps a cause for the log.
    pub(super) fn source(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(cause.into());
        self
    }

    fn body(&mut self) -> Value {
        let mut body = Map::new();
        for (key, value) in self.fields.drain(..) {
            body.insert(key.to_owned(), value);
        }
        body.insert("error".to_owned(), Value::from(self.text.as_ref()));
        if let Some(code) = self.code {
            body.insert("code".to_owned(), Value::from(code));
        }
        Value::Object(body)
    }
}

impl From<db::Error> for ApiError {
    fn from(cause: db::Error) -> Self {
        match cause {
            db::Error::Unavailable(_) | db::Error::Timeout(_) => {
                Self::unavailable("the store is not available, try again").source(cause)
            }
            db::Error::Value(..) => {
                Self::bad("the request holds a value that cannot be stored").source(cause)
            }
            cause => Self::store_failed(cause),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        let status = self.status.as_u16();
        let cause = self.source.as_deref().map(|cause| telemetry::chain(cause));
        let cause = cause.as_deref().unwrap_or_default();
        if self.status.is_server_error() {
            tracing::warn!(status, error = %self.text, cause, "request failed");
        } else {
            tracing::debug!(status, error = %self.text, cause, "request refused");
        }
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// data-plane 1.2
    #[test]
    fn a_body_has_the_text_and_only_what_was_asked_for() {
        assert_eq!(ApiError::bad("x is required").body(), json!({"error": "x is required"}));
        let mut error = ApiError::bad("no").code("c").with("success", false);
        assert_eq!(error.body(), json!({"success": false, "error": "no", "code": "c"}));
    }

    #[test]
    fn causes_of_the_store_are_not_shown() {
        let mut error = ApiError::from(db::Error::Unavailable("secret".into()));
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!error.body().to_string().contains("secret"));
        let mut error = ApiError::from(db::Error::Constraint("c".to_owned(), closed()));
        assert_eq!(error.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(error.body(), json!({"error": "the store failed"}));
    }

    fn closed() -> tokio_postgres::Error {
        "port=x".parse::<tokio_postgres::Config>().expect_err("no port")
    }
}
