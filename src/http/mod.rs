//! The wire: routes, shapes and status codes of the contract, and nothing else.
//!
//! Every handler reads its request into a value of the layers below, makes one call, and renders
//! the answer. Contract quirks (mixed casing, 200 with `success:false`, texts that clients match)
//! exist only here. Nothing in this layer holds state of its own.

mod admin;
mod answer;
mod api;
mod auth;
mod error;
mod extract;
mod fold;
mod ops;
mod shape;
mod streams;

use std::time::Instant;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use tower_http::trace::TraceLayer;

use crate::broker::Broker;
use crate::hosted;
pub use auth::{Auth, AuthConfig, AuthConfigError, Level, level};
use error::ApiError;

/// What handlers need. Clones share everything.
#[derive(Clone)]
pub struct AppState {
    /// The broker.
    pub broker: Broker,
    /// The hosted folds.
    pub hosted: hosted::Handle,
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// Whether a named group without a subscription mode starts past the backlog.
    pub default_subscription_new: bool,
    /// Whether the tenant of a request is read from its `x-queen-tenant` header.
    pub tenancy: bool,
    /// Checks tokens; `None` lets every request pass.
    pub auth: Option<Auth>,
    /// When the process started.
    pub started: Instant,
}

/// The whole HTTP surface.
pub fn router(state: AppState) -> Router {
    // Failures are logged once, where they become an answer.
    routes()
        .layer(axum::middleware::from_fn_with_state(state.clone(), auth::guard))
        .layer(TraceLayer::new_for_http().on_failure(()))
        .with_state(state)
}

/// The route table. Routes match the raw path; names are decoded afterwards.
fn routes() -> Router<AppState> {
    use api::{ack, configure, lease, pop, push, transaction};
    use fold::{modules, queries as hosted_queries};
    use streams::{cycle, queries, state};
    Router::new()
        .route("/api/v1/push", post(push::push))
        .route("/api/v1/pop", popping(get(pop::discovery)))
        .route("/api/v1/pop/queue/", popping(get(pop::unnamed)))
        .route("/api/v1/pop/queue/{queue}", popping(get(pop::queue)))
        .route("/api/v1/pop/queue/{queue}/partition/{partition}", popping(get(pop::partition)))
        .route("/api/v1/ack", post(ack::single))
        .route("/api/v1/ack/batch", post(ack::batch))
        .route("/api/v1/lease/{lease}/extend", post(lease::extend))
        .route("/api/v1/transaction", post(transaction::transaction))
        .route("/api/v1/configure", post(configure::configure))
        .merge(admin_routes())
        .route("/streams/v1/queries", post(queries::register).get(hosted_queries::list))
        .route(
            "/streams/v1/queries/{name}",
            get(hosted_queries::show).delete(hosted_queries::delete),
        )
        .route("/streams/v1/queries/{name}/pause", post(hosted_queries::pause))
        .route("/streams/v1/queries/{name}/resume", post(hosted_queries::resume))
        .route("/streams/v1/queries/{name}/flush", post(hosted_queries::flush))
        .route("/streams/v1/state/get", post(state::get))
        .route("/streams/v1/cycle", post(cycle::cycle))
        .route("/streams/v1/modules", post(modules::upload).get(modules::list))
        .route("/streams/v1/modules/{hash}", get(modules::show).delete(modules::delete))
        .route("/health", get(ops::health))
        .route("/status", get(ops::status))
        .route("/metrics", get(ops::metrics))
        .route("/metrics/prometheus", get(ops::prometheus))
        .fallback(no_route)
}

/// The control plane. Some paths that SDKs call exist on purpose nowhere (control-plane 2).
fn admin_routes() -> Router<AppState> {
    use admin::{dlq, groups, maintenance, messages, resources, status, traces};
    use api::queue;
    Router::new()
        .route("/api/v1/system/maintenance", get(maintenance::show).post(maintenance::set))
        .route(
            "/api/v1/system/maintenance/pop",
            get(maintenance::show_pop).post(maintenance::set_pop),
        )
        .route(
            "/api/v1/resources/queues/",
            get(resources::unnamed_queue).delete(queue::delete_unnamed),
        )
        .route("/api/v1/resources/queues/{queue}", get(resources::queue).delete(queue::delete))
        .route("/api/v1/resources/queues", get(resources::queues))
        .route("/api/v1/resources/queues/{queue}/depth", get(resources::depth))
        .route("/api/v1/resources/overview", get(resources::overview))
        .route("/api/v1/resources/namespaces", get(resources::namespaces))
        .route("/api/v1/resources/tasks", get(resources::tasks))
        .route("/api/v1/stats/refresh", post(resources::refresh))
        .route("/api/v1/messages", get(messages::list))
        .route(
            "/api/v1/messages/{partition}/{transaction}",
            get(messages::show).delete(messages::delete),
        )
        .route("/api/v1/messages/{partition}/{transaction}/retry", post(messages::retry))
        .route("/api/v1/dlq", get(dlq::list).delete(dlq::purge))
        .route("/api/v1/dlq/{id}/replay", post(dlq::replay))
        .route("/api/v1/consumer-groups", get(groups::list))
        .route(
            "/api/v1/consumer-groups/lagging",
            get(groups::lagging).delete(groups::delete_lagging),
        )
        .route("/api/v1/consumer-groups/{group}", get(groups::show).delete(groups::delete))
        .route("/api/v1/consumer-groups/{group}/subscription", post(groups::subscription))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}", delete(groups::delete_on_queue))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}/seek", post(groups::seek))
        .route(
            "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
            post(groups::seek_partition),
        )
        .route("/api/v1/traces", post(traces::record))
        .route("/api/v1/traces/names", get(traces::known_names))
        .route("/api/v1/traces/by-name/{name}", get(traces::by_name))
        .route("/api/v1/traces/{partition}/{transaction}", get(traces::of_message))
        .route("/api/v1/status", get(status::status))
        .route("/api/v1/status/queues", get(status::queues))
        .route("/api/v1/status/queues/{queue}", get(status::queue))
}

/// Keeps HEAD away from a pop: it would claim messages that nobody receives.
fn popping(pop: MethodRouter<AppState>) -> MethodRouter<AppState> {
    pop.head(async || StatusCode::METHOD_NOT_ALLOWED)
}

/// Answers what no route matches (data-plane 1.1, control-plane 1).
async fn no_route(method: Method, uri: Uri) -> Response {
    if is_api(uri.path()) || !matches!(method, Method::GET | Method::HEAD) {
        ApiError::new(StatusCode::NOT_FOUND, "Not Found").code("no_such_route").into_response()
    } else {
        (StatusCode::NOT_FOUND, "Not Found").into_response()
    }
}

fn is_api(path: &str) -> bool {
    ["/api", "/auth", "/streams"].iter().any(|prefix| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_table_has_no_conflict() {
        // A conflict panics.
        drop(routes());
    }

    /// data-plane 1.1
    #[test]
    fn a_miss_below_an_api_prefix_is_told_apart() {
        for path in ["/api", "/api/v2/x", "/streams/v1/nothing", "/auth/"] {
            assert!(is_api(path), "{path}");
        }
        for path in ["/", "/apiary", "/console/api"] {
            assert!(!is_api(path), "{path}");
        }
    }
}
