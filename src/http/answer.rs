//! Answers that are written by hand, because they hold JSON text as it was stored.

use std::io::Write;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

/// A time as the data plane shows it: UTC, always six digits (data-plane 1.4).
pub(super) fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}

/// JSON under construction. The caller writes punctuation, this escapes what is between.
pub(super) struct Json(Vec<u8>);

impl Json {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Text that is JSON already.
    pub(super) fn raw(&mut self, json: &str) -> &mut Self {
        self.0.extend_from_slice(json.as_bytes());
        self
    }

    /// A string, quoted and escaped.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.value(&text)
    }

    /// A uuid, quoted.
    pub(super) fn uuid(&mut self, id: Uuid) -> &mut Self {
        let mut buffer = Uuid::encode_buffer();
        let text = id.hyphenated().encode_lower(&mut buffer);
        self.0.push(b'"');
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'"');
        self
    }

    /// A time, quoted.
    pub(super) fn time(&mut self, at: Timestamp) -> &mut Self {
        write!(self.0, "\"{at:.6}\"").expect("memory takes everything");
        self
    }

    /// Anything that serialises.
    pub(super) fn value<T: Serialize>(&mut self, value: &T) -> &mut Self {
        serde_json::to_writer(&mut self.0, value).expect("plain data, into memory");
        self
    }

    #[cfg(test)]
    pub(super) fn parsed(self) -> serde_json::Value {
        serde_json::from_slice(&self.0).expect("JSON")
    }
}

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        (StatusCode::OK, [(header::CONTENT_TYPE, json)], self.0).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// data-plane 1.4
    #[test]
    fn times_have_six_digits() {
        let at = Timestamp::from_second(1_789_893_065).expect("in range");
        assert_eq!(time(at), "2026-09-20T08:31:05.000000Z");
        let at = Timestamp::from_microsecond(1_789_893_065_104_233).expect("in range");
        assert_eq!(time(at), "2026-09-20T08:31:05.104233Z");
    }

    #[test]
    fn text_is_escaped_and_raw_json_is_not() {
        let mut json = Json::with_capacity(0);
        json.raw("{\"a\":").text("\"\u{1f}\n").raw(",\"b\":").raw("[1.50]").raw(",\"c\":");
        json.uuid(Uuid::nil()).raw("}");
        let value = json.parsed();
        assert_eq!(value["a"], "\"\u{1f}\n");
        assert_eq!(value["c"], Uuid::nil().to_string());
    }
}
