//! What handlers take of a request: body, query, names in the path, tenant.

use std::borrow::Cow;

use axum::body::{Body as HttpBody, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::AppState;
use super::error::ApiError;
use super::shape::fault;
use crate::telemetry;
use crate::types::id::{PartitionId, TenantId};
use crate::types::limits::NAME_BYTES_MAX;

/// The whole body as bytes, whatever its content type.
pub(super) struct Body(pub(super) Bytes);

impl FromRequest<AppState> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        read_body(request, state.body_bytes_max).await.map(Self)
    }
}

/// Reads a body of at most `limit` bytes, and nothing of a larger one than that.
///
/// # Errors
/// 413 above the limit, 415 for a compressed body, 400 for one that breaks off.
pub(super) async fn read_body(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    check_encoding(request.headers())?;
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if announced.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > limit as u64) {
        return Err(too_large(limit));
    }
    collect(request.into_body(), limit).await
}

async fn collect(body: HttpBody, limit: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(cause) if cause.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(cause) => Err(ApiError::bad("the body broke off").source(cause)),
    }
}

fn too_large(limit: usize) -> ApiError {
    let text = format!("the body is larger than the limit of {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    for value in headers.get_all(CONTENT_ENCODING) {
        let plain = value.to_str().is_ok_and(|v| {
            v.split(',').map(str::trim).all(|v| v.is_empty() || v.eq_ignore_ascii_case("identity"))
        });
        if !plain {
            let text = "compressed bodies are not supported: send no Content-Encoding";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
    }
    Ok(())
}

/// Query parameters under the strict rules of the data plane (data-plane 1.1).
pub(super) struct Params(String);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self(parts.uri.query().unwrap_or_default().to_owned()))
    }
}

impl Params {
    #[cfg(test)]
    pub(super) fn of(query: &str) -> Self {
        Self(query.to_owned())
    }

    /// The last value of that name, decoded.
    ///
    /// # Errors
    /// 400 for one that is not UTF-8.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        let pairs = self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let found = pairs.rev().find(|(key, _)| decode(key).is_some_and(|key| key == name));
        let Some((_, value)) = found else { return Ok(None) };
        let text = decode(value).ok_or_else(|| ApiError::bad(format!("{name} is not UTF-8")))?;
        Ok(Some(text))
    }

    /// An integer.
    ///
    /// # Errors
    /// 400 for anything that is none of 64 bits.
    pub(super) fn int(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse();
        let refuse = |_| ApiError::bad(format!("{name} must be an integer, not {text:?}"));
        number.map(Some).map_err(refuse)
    }

    /// `true` or `false`; absent is false.
    ///
    /// # Errors
    /// 400 for any other word.
    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name)?.as_deref() {
            Some("true") => Ok(true),
            Some("false") | None => Ok(false),
            Some(other) => {
                Err(ApiError::bad(format!("{name} must be true or false, not {other:?}")))
            }
        }
    }
}

/// Both `%20` and `+` are a space in a query.
fn decode(text: &str) -> Option<String> {
    let spaced: Cow<'_, str> =
        if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    percent_decode(spaced.as_bytes()).decode_utf8().ok().map(Cow::into_owned)
}

/// Names of the path, decoded after routing: `%2F` stays inside a name.
pub(super) struct Names<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Names<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(cause) => Err(ApiError::bad("a name in the path is not UTF-8").source(cause)),
        }
    }
}

/// Checks a name of the path or the query.
///
/// # Errors
/// 400 with field, limit and length, or the control character.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    match fault(name, NAME_BYTES_MAX) {
        Some(fault) => Err(ApiError::bad(format!("{field} {fault}"))),
        None => Ok(()),
    }
}

/// Header that names the tenant, set by a trusted proxy.
const TENANT_HEADER: &str = "x-queen-tenant";

/// Who the request acts for. With tenancy off the header is not read and everything belongs to the
/// default tenant (streams C6).
pub(super) struct Tenant(pub(super) TenantId);

impl FromRequestParts<AppState> for Tenant {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        if !state.tenancy {
            return Ok(Self(TenantId::DEFAULT));
        }
        tenant(parts.headers.get(TENANT_HEADER)).map(Self)
    }
}

fn tenant(header: Option<&HeaderValue>) -> Result<TenantId, ApiError> {
    let refuse = || ApiError::bad("invalid x-queen-tenant header (must be a UUID)");
    let Some(header) = header else { return Ok(TenantId::DEFAULT) };
    let text = header.to_str().map_err(|_bytes| refuse())?.trim();
    if text.is_empty() {
        return Ok(TenantId::DEFAULT);
    }
    // The dashed form only: one spelling of a tenant, whatever the case.
    if text.len() != 36 {
        return Err(refuse());
    }
    Uuid::try_parse(text).map(TenantId).map_err(|_malformed| refuse())
}

/// Lets a request pass that names a partition of its own tenant. With tenancy on, a foreign, a
/// missing and a malformed one answer alike, before anything is read; so does a failed look-up
/// (streams G17, G21, Y7).
pub(super) async fn own_partition(
    app: &AppState,
    tenant: TenantId,
    partition: Option<PartitionId>,
) -> Result<(), ApiError> {
    if !app.tenancy {
        return Ok(());
    }
    let found = match partition {
        Some(id) => app.broker.partition_find(id).await.unwrap_or_else(|cause| {
            let cause = telemetry::chain(&cause);
            tracing::warn!(cause, "the owner of a partition was not read: access denied");
            None
        }),
        None => None,
    };
    if found.is_some_and(|partition| partition.queue.tenant == tenant) {
        return Ok(());
    }
    Err(ApiError::not_found("not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// data-plane 1.1
    #[test]
    fn both_spellings_of_a_space_are_read() {
        let params = Params::of("a=x%20y&b=x+y&c=x%2By&d=%ff&e=1&e=2&f");
        let text = |name| params.text(name).expect("UTF-8");
        assert_eq!(text("a").as_deref(), Some("x y"));
        assert_eq!(text("b").as_deref(), Some("x y"));
        assert_eq!(text("c").as_deref(), Some("x+y"));
        assert!(params.text("d").is_err());
        assert_eq!(text("e").as_deref(), Some("2"));
        assert_eq!(text("f").as_deref(), Some(""));
        assert_eq!(text("g"), None);
    }

    /// data-plane 51
    #[test]
    fn parameters_that_do_not_parse_are_refused() {
        let params = Params::of("n=-5&x=1.5&y=&t=true&f=false&u=TRUE&v=1");
        assert_eq!(params.int("n").expect("integer"), Some(-5));
        assert!(params.int("x").is_err());
        assert!(params.int("y").is_err());
        assert!(params.flag("t").expect("flag"));
        assert!(!params.flag("f").expect("flag"));
        assert!(!params.flag("absent").expect("flag"));
        assert!(params.flag("u").is_err());
        assert!(params.flag("v").is_err());
    }

    /// data-plane 1.1
    #[test]
    fn only_identity_is_a_known_encoding() {
        let mut headers = HeaderMap::new();
        assert!(check_encoding(&headers).is_ok());
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("Identity"));
        assert!(check_encoding(&headers).is_ok());
        headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(check_encoding(&headers).is_err());
    }

    #[tokio::test]
    async fn a_body_without_length_is_cut_at_the_limit() {
        let exact = collect(HttpBody::from("12345"), 5).await.expect("fits");
        assert_eq!(exact, "12345");
        assert!(collect(HttpBody::from("123456"), 5).await.is_err());
    }

    #[test]
    fn a_tenant_is_a_dashed_uuid_or_nobody() {
        let read = |text: &'static str| tenant(Some(&HeaderValue::from_static(text)));
        assert_eq!(tenant(None).expect("good"), TenantId::DEFAULT);
        assert_eq!(read("  ").expect("good"), TenantId::DEFAULT);
        let upper = read("0193F0C4-1A2B-7C3D-8E4F-5A6B7C8D9E0F").expect("good");
        assert_eq!(upper.to_string(), "0193f0c4-1a2b-7c3d-8e4f-5a6b7c8d9e0f");
        assert!(read("0193f0c41a2b7c3d8e4f5a6b7c8d9e0f").is_err(), "undashed");
        assert!(read("acme").is_err());
    }
}
