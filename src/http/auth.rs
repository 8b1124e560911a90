//! Who may do what: bearer tokens, access levels, the level of every route.
//!
//! Off unless the configuration names an algorithm. Order when on: public and skipped paths pass,
//! then a token must be present, good, and of a sufficient role (control-plane section 14).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;

use super::AppState;
use super::error::ApiError;

/// Clock skew that time claims may have, s.
const SKEW_S: i64 = 30;
/// Paths that need no token although they are no public routes.
const SKIP: &str = "/health,/metrics/prometheus,/metrics,/";

/// Access level of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No token needed.
    Public,
    /// Roles `read-only`, `read-write`, `admin`.
    ReadOnly,
    /// Roles `write-only`, `read-write`, `admin`: pushes and nothing else.
    WriteOnly,
    /// Roles `read-write`, `admin`.
    ReadWrite,
    /// Role `admin`.
    Admin,
}

impl Level {
    fn passes(self, role: &str) -> bool {
        match self {
            Self::Public => true,
            Self::ReadOnly => matches!(role, "read-only" | "read-write" | "admin"),
            Self::WriteOnly => matches!(role, "write-only" | "read-write" | "admin"),
            Self::ReadWrite => matches!(role, "read-write" | "admin"),
            Self::Admin => role == "admin",
        }
    }
}

/// The level of a route; what is not named here is read-write, unknown paths included.
#[must_use]
pub fn level(method: &Method, path: &str) -> Level {
    let get = matches!(*method, Method::GET | Method::HEAD);
    let public = ["/health", "/metrics", "/metrics/prometheus", "/"].contains(&path)
        || ["/auth/me", "/auth/login", "/auth/logout"].contains(&path)
        || path.starts_with("/assets/")
        || path.starts_with("/favicon");
    if public {
        return Level::Public;
    }
    let under = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let admin_delete = [
        "/api/v1/consumer-groups/",
        "/api/v1/resources/queues/",
        "/api/v1/dlq",
        "/streams/v1/modules/",
        "/streams/v1/queries/",
    ];
    if under(&["/api/v1/system/", "/internal/"])
        || path == "/api/v1/stats/refresh"
        || (*method == Method::DELETE && under(&admin_delete))
    {
        return Level::Admin;
    }
    if *method == Method::POST && path == "/api/v1/push" {
        return Level::WriteOnly;
    }
    let readable = [
        "/api/v1/status",
        "/api/v1/analytics",
        "/api/v1/resources/",
        "/api/v1/messages",
        "/api/v1/consumer-groups",
        "/api/v1/dlq",
        "/api/v1/traces",
        "/streams/v1/modules",
        "/streams/v1/queries",
    ];
    if (get && (under(&readable) || path == "/status")) || path == "/streams/v1/state/get" {
        return Level::ReadOnly;
    }
    Level::ReadWrite
}

/// Settings of authentication.
#[derive(Clone, Default)]
pub struct AuthConfig {
    /// `HS256`, `HS384`, `HS512`, `RS256`, `RS384`, `RS512`, `EdDSA` or `auto`.
    pub algorithm: String,
    /// Key of the HS algorithms, as raw bytes.
    pub secret: Option<String>,
    /// PEM of the public key for RS and EdDSA.
    pub public_key: Option<String>,
    /// Required issuer, if any.
    pub issuer: Option<String>,
    /// Required audience, if any.
    pub audience: Option<String>,
}

impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret is never shown.
        let secret = self.secret.is_some();
        f.debug_struct("AuthConfig")
            .field("algorithm", &self.algorithm)
            .field("secret", &secret)
            .finish_non_exhaustive()
    }
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthConfigError {
    /// A word that is no algorithm.
    #[error(
        "JWT algorithm {0:?} is not supported: HS256, HS384, HS512, RS256, RS384, RS512, EdDSA, auto"
    )]
    Algorithm(String),
    /// No key for the algorithm.
    #[error("JWT algorithm {0} needs {1}")]
    NoKey(String, &'static str),
    /// A PEM that is no public key.
    #[error("the JWT public key is no PEM of an RSA or Ed25519 key")]
    Pem(#[source] jsonwebtoken::errors::Error),
}

/// Checks tokens. Clones share everything.
#[derive(Clone)]
pub struct Auth(Arc<Inner>);

struct Inner {
    algorithms: BTreeSet<&'static str>,
    secret: Option<DecodingKey>,
    rsa: Option<DecodingKey>,
    eddsa: Option<DecodingKey>,
    issuer: Option<String>,
    audience: Option<String>,
    skip: Vec<&'static str>,
}

fn name_of(algorithm: Algorithm) -> Option<&'static str> {
    Some(match algorithm {
        Algorithm::HS256 => "HS256",
        Algorithm::HS384 => "HS384",
        Algorithm::HS512 => "HS512",
        Algorithm::RS256 => "RS256",
        Algorithm::RS384 => "RS384",
        Algorithm::RS512 => "RS512",
        Algorithm::EdDSA => "EdDSA",
        _ => return None,
    })
}

impl Auth {
    /// Sets authentication up.
    ///
    /// # Errors
    /// Any [`AuthConfigError`].
    pub fn new(config: &AuthConfig) -> Result<Self, AuthConfigError> {
        let hmac = ["HS256", "HS384", "HS512"];
        let rsa = ["RS256", "RS384", "RS512"];
        let algorithms: BTreeSet<&'static str> = match config.algorithm.as_str() {
            "auto" => [hmac.as_slice(), &rsa, &["EdDSA"]].concat().into_iter().collect(),
            // RS256 admits its longer siblings.
            "RS256" => rsa.into_iter().collect(),
            word => [hmac.as_slice(), &rsa, &["EdDSA"]]
                .concat()
                .into_iter()
                .filter(|known| *known == word)
                .collect(),
        };
        if algorithms.is_empty() {
            return Err(AuthConfigError::Algorithm(config.algorithm.clone()));
        }
        let secret = config.secret.as_deref().filter(|secret| !secret.is_empty());
        let pem = config.public_key.as_deref().filter(|pem| !pem.is_empty());
        let (rsa_key, eddsa_key) = match pem {
            Some(pem) => {
                let rsa_key = DecodingKey::from_rsa_pem(pem.as_bytes());
                let eddsa_key = DecodingKey::from_ed_pem(pem.as_bytes());
                match (rsa_key, eddsa_key) {
                    (Err(cause), Err(_)) => return Err(AuthConfigError::Pem(cause)),
                    (rsa_key, eddsa_key) => (rsa_key.ok(), eddsa_key.ok()),
                }
            }
            None => (None, None),
        };
        let word = config.algorithm.clone();
        match config.algorithm.as_str() {
            "auto" if secret.is_none() && pem.is_none() => {
                return Err(AuthConfigError::NoKey(word, "a secret or a public key"));
            }
            hs if hs.starts_with("HS") && secret.is_none() => {
                return Err(AuthConfigError::NoKey(word, "a secret"));
            }
            other if !other.starts_with("HS") && other != "auto" && pem.is_none() => {
                return Err(AuthConfigError::NoKey(word, "a public key"));
            }
            _ => {}
        }
        Ok(Self(Arc::new(Inner {
            algorithms,
            secret: secret.map(|secret| DecodingKey::from_secret(secret.as_bytes())),
            rsa: rsa_key,
            eddsa: eddsa_key,
            issuer: config.issuer.clone().filter(|text| !text.is_empty()),
            audience: config.audience.clone().filter(|text| !text.is_empty()),
            skip: SKIP.split(',').collect(),
        })))
    }

    fn skipped(&self, path: &str) -> bool {
        self.0.skip.iter().any(|skip| {
            *skip == path || (skip.len() > 1 && skip.ends_with('/') && path.starts_with(skip))
        })
    }

    /// The claims of a request's token.
    fn claims(&self, headers: &HeaderMap) -> Result<Value, ApiError> {
        let refuse = |text: &'static str| ApiError::new(StatusCode::UNAUTHORIZED, text);
        let given = headers.get(header::AUTHORIZATION);
        let given = given.ok_or_else(|| refuse("Authentication required"))?;
        let text = given.to_str().map_err(|_bytes| refuse("Bad token header"))?.trim();
        let token = match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => text,
        };
        if token.is_empty() {
            return Err(refuse("Authentication required"));
        }
        let head =
            jsonwebtoken::decode_header(token).map_err(|_cause| refuse("Bad token header"))?;
        let name = name_of(head.alg).filter(|name| self.0.algorithms.contains(name));
        let name = name.ok_or_else(|| refuse("Unsupported token algorithm"))?;
        let key = match name {
            hs if hs.starts_with("HS") => self.0.secret.as_ref(),
            "EdDSA" => self.0.eddsa.as_ref(),
            _ => self.0.rsa.as_ref(),
        };
        let missing = "no key for the token's algorithm";
        let key = key.ok_or_else(|| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, missing))?;
        let mut validation = Validation::new(head.alg);
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let claims = jsonwebtoken::decode::<Value>(token, key, &validation)
            .map_err(|_cause| refuse("Invalid token signature"))?
            .claims;
        self.check(&claims)?;
        Ok(claims)
    }

    /// Checks time, issuer and audience; a missing time claim is not checked.
    fn check(&self, claims: &Value) -> Result<(), ApiError> {
        let refuse = |text: &'static str| Err(ApiError::new(StatusCode::UNAUTHORIZED, text));
        let now = now_s();
        #[expect(clippy::cast_possible_truncation, reason = "a fraction of a second is dropped")]
        let time = |name: &str| {
            claims.get(name).and_then(|v| v.as_i64().or_else(|| v.as_f64().map(|f| f as i64)))
        };
        if time("exp").is_some_and(|at| at + SKEW_S < now) {
            return refuse("Token has expired");
        }
        if time("nbf").is_some_and(|at| at - SKEW_S > now) {
            return refuse("Token not yet valid");
        }
        if time("iat").is_some_and(|at| at - SKEW_S > now) {
            return refuse("Token issued in the future");
        }
        if let Some(issuer) = &self.0.issuer
            && claims["iss"].as_str() != Some(issuer)
        {
            return refuse("Invalid token issuer");
        }
        if let Some(audience) = &self.0.audience {
            let aud = &claims["aud"];
            let listed = aud.as_array().is_some_and(|list| list.iter().any(|a| a == audience));
            if aud.as_str() != Some(audience) && !listed {
                return refuse("Invalid token audience");
            }
        }
        Ok(())
    }
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn roles(claims: &Value) -> Vec<&str> {
    let one = claims["role"].as_str();
    let many = claims["roles"].as_array().into_iter().flatten().filter_map(Value::as_str);
    one.into_iter().chain(many).collect()
}

/// Who pushed: the `sub` of the token, if there is one.
#[derive(Clone, Debug, Default)]
pub(super) struct Producer(pub(super) Option<String>);

/// Lets a request pass whose token is good enough for its route.
pub(super) async fn guard(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut producer = Producer::default();
    if let Some(auth) = &app.auth {
        let path = request.uri().path();
        let level = level(request.method(), path);
        if level != Level::Public && !auth.skipped(path) {
            let claims = match auth.claims(request.headers()) {
                Ok(claims) => claims,
                Err(refused) => return refused.into_response(),
            };
            if !roles(&claims).iter().any(|role| level.passes(role)) {
                let text = "Insufficient permissions";
                return ApiError::new(StatusCode::FORBIDDEN, text).into_response();
            }
            let sub = claims["sub"].as_str().filter(|sub| !sub.is_empty());
            producer = Producer(sub.map(str::to_owned));
        }
    }
    request.extensions_mut().insert(producer);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_the_levels_of_the_contract() {
        let cases = [
            (Method::GET, "/health", Level::Public),
            (Method::POST, "/api/v1/push", Level::WriteOnly),
            (Method::GET, "/api/v1/pop/queue/q", Level::ReadWrite),
            (Method::POST, "/streams/v1/queries", Level::ReadWrite),
            (Method::POST, "/streams/v1/state/get", Level::ReadOnly),
            (Method::POST, "/streams/v1/cycle", Level::ReadWrite),
            (Method::POST, "/streams/v1/modules", Level::ReadWrite),
            (Method::GET, "/streams/v1/queries/x", Level::ReadOnly),
            (Method::DELETE, "/streams/v1/queries/x", Level::Admin),
            (Method::DELETE, "/api/v1/resources/queues/q", Level::Admin),
            (Method::GET, "/api/v1/dlq", Level::ReadOnly),
            (Method::POST, "/api/v1/dlq/x/replay", Level::ReadWrite),
            (Method::GET, "/api/v1/system/maintenance", Level::Admin),
            (Method::GET, "/api/v1/nothing", Level::ReadWrite),
        ];
        for (method, path, expected) in cases {
            assert_eq!(level(&method, path), expected, "{method} {path}");
        }
        assert!(!Level::ReadWrite.passes("write-only"));
        assert!(!Level::WriteOnly.passes("read-only"));
    }

    #[test]
    fn a_configuration_needs_its_key() {
        let config = |algorithm: &str, secret: Option<&str>| AuthConfig {
            algorithm: algorithm.to_owned(),
            secret: secret.map(str::to_owned),
            ..AuthConfig::default()
        };
        assert!(Auth::new(&config("HS256", Some("s"))).is_ok());
        assert!(matches!(Auth::new(&config("HS256", None)), Err(AuthConfigError::NoKey(..))));
        assert!(matches!(Auth::new(&config("RS256", Some("s"))), Err(AuthConfigError::NoKey(..))));
        assert!(matches!(Auth::new(&config("none", None)), Err(AuthConfigError::Algorithm(_))));
        assert!(!format!("{:?}", config("HS256", Some("hunter2"))).contains("hunter2"));
    }
}
