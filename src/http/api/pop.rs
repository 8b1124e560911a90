//! The three pops (data-plane 3): parameters in, status and message list out.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::pop_answer::{Echo, Shown};
use crate::broker::{Maintenance, Pop, PopError, PopScope, start_of};
use crate::http::AppState;
use crate::http::error::ApiError;
use crate::http::extract::{Names, Params, Tenant, check_name};
use crate::types::id::{QUEUE_MODE, TenantId};
use crate::types::limits::{LEASE_S_MAX, POP_BATCH, POP_BATCH_AUTOPILOT, POP_TIMEOUT_MS};

/// Longest long poll, ms. A longer wish is served as this one.
const TIMEOUT_MS_MAX: u64 = 600_000;
/// Pause between empty polls that autopilot advises, ms.
const ADVISED_WAIT_MS: u64 = 100;

/// `GET /api/v1/pop`: every queue with the labels.
pub(in crate::http) async fn discovery(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    params: Params,
) -> Response {
    let answer = match discovered(&params) {
        Ok(scope) => serve(&app, tenant, &params, scope).await,
        Err(refused) => Err(refused),
    };
    finish(answer)
}

/// `GET /api/v1/pop/queue/{queue}`: any partitions of one queue.
pub(in crate::http) async fn queue(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    name: Result<Names<String>, ApiError>,
    params: Params,
) -> Response {
    let scope = name.and_then(|Names(queue)| {
        check_queue(&queue)?;
        Ok(PopScope::Queue(queue))
    });
    let answer = match scope {
        Ok(scope) => serve(&app, tenant, &params, scope).await,
        Err(refused) => Err(refused),
    };
    finish(answer)
}

/// `GET /api/v1/pop/queue/{queue}/partition/{partition}`: one partition.
pub(in crate::http) async fn partition(
    State(app): State<AppState>,
    Tenant(tenant): Tenant,
    names: Result<Names<(String, String)>, ApiError>,
    params: Params,
) -> Response {
    let scope = names.and_then(|Names((queue, partition))| {
        check_queue(&queue)?;
        check_name("partition", &partition)?;
        Ok(PopScope::Partition(queue, partition))
    });
    let answer = match scope {
        Ok(scope) => serve(&app, tenant, &params, scope).await,
        Err(refused) => Err(refused),
    };
    finish(answer)
}

/// `GET /api/v1/pop/queue/`: the empty name, which no push can fill.
pub(in crate::http) async fn unnamed() -> Response {
    finish(check_queue("").map(IntoResponse::into_response))
}

/// A queue without a name cannot be pushed to, so it must not come into being by a pop either.
fn check_queue(queue: &str) -> Result<(), ApiError> {
    if queue.is_empty() {
        return Err(ApiError::bad("queue must not be empty"));
    }
    check_name("queue", queue)
}

async fn serve(
    app: &AppState,
    tenant: TenantId,
    params: &Params,
    scope: PopScope,
) -> Result<Response, ApiError> {
    let (pop, echo) = read(params, scope, app.default_subscription_new)?;
    if app.broker.in_maintenance(Maintenance::Pop) {
        return Ok(if pop.conflation {
            let body = json!({"messages": [], "paused": true, "conflation": true});
            axum::Json(body).into_response()
        } else {
            StatusCode::NO_CONTENT.into_response()
        });
    }
    match app.broker.pop(tenant, &pop).await {
        Ok(popped) => Ok(match Shown::of(&pop, &popped, echo) {
            Some(shown) => shown.render().into_response(),
            None => StatusCode::NO_CONTENT.into_response(),
        }),
        Err(PopError::Store(cause)) => Err(cause.into()),
        Err(cause @ PopError::Gone) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(ApiError::new(status, "pop failed; a retry is safe").source(cause))
        }
    }
}

/// Adds what every pop has in common: a pop mutates, and a refused one has an empty list.
fn finish(answer: Result<Response, ApiError>) -> Response {
    let no_messages = serde_json::Value::Array(Vec::new());
    let mut response = answer.unwrap_or_else(|error| {
        error.with("success", false).with("messages", no_messages).into_response()
    });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn discovered(params: &Params) -> Result<PopScope, ApiError> {
    let namespace = params.text("namespace")?.unwrap_or_default();
    let task = params.text("task")?.unwrap_or_default();
    if namespace.is_empty() && task.is_empty() {
        return Err(ApiError::bad("namespace or task is required"));
    }
    check_name("namespace", &namespace)?;
    check_name("task", &task)?;
    Ok(PopScope::Discovery { namespace, task })
}

/// Applies the contract's defaults.
fn read(
    params: &Params,
    scope: PopScope,
    default_new: bool,
) -> Result<(Pop, Option<Echo>), ApiError> {
    let group = params.text("consumerGroup")?.filter(|group| !group.is_empty());
    let group = group.unwrap_or_else(|| QUEUE_MODE.to_owned());
    check_name("consumerGroup", &group)?;
    let named = group != QUEUE_MODE;
    let conflation = params.flag("conflation")?;
    let auto_ack = params.flag("autoAck")?;
    if conflation && !named {
        return Err(ApiError::bad("conflation needs a consumerGroup"));
    }
    if conflation && auto_ack {
        return Err(ApiError::bad("conflation cannot be combined with autoAck"));
    }
    let asked_batch = params.int("batch")?;
    let asked_partitions = params.int("partitions")?;
    let autopilot = params.flag("autopilot")?
        && named
        && matches!(scope, PopScope::Queue(_))
        && (asked_batch.is_none() || asked_partitions.is_none());
    let batch = match asked_batch {
        Some(n) => i32::try_from(n.max(1)).unwrap_or(i32::MAX),
        None if autopilot => POP_BATCH_AUTOPILOT,
        None => POP_BATCH,
    };
    let partitions = match asked_partitions {
        Some(n) => Some(i32::try_from(n.max(0)).unwrap_or(i32::MAX)),
        None => autopilot.then_some(1),
    };
    let timeout_ms = params.int("timeout")?;
    let timeout_ms = timeout_ms.map_or(POP_TIMEOUT_MS, |ms| u64::try_from(ms).unwrap_or(0));
    let wait = params.flag("wait")?;
    let mode = params.text("subscriptionMode")?;
    let from = params.text("subscriptionFrom")?;
    let echo = autopilot.then_some(Echo {
        partitions: partitions.unwrap_or(1),
        batch,
        wait_ms: ADVISED_WAIT_MS,
    });
    let pop = Pop {
        scope,
        batch,
        partitions,
        auto_ack,
        wait: wait.then(|| Duration::from_millis(timeout_ms.min(TIMEOUT_MS_MAX))),
        lease_s: params.int("leaseSeconds")?.filter(|s| *s > 0).map(|s| s.min(LEASE_S_MAX)),
        group,
        start: start_of(mode.as_deref(), from.as_deref(), default_new),
        conflation,
    };
    Ok((pop, echo))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::group::Start;

    fn queue_pop(query: &str) -> (Pop, Option<Echo>) {
        read(&Params::of(query), PopScope::Queue("q".to_owned()), true).expect("good")
    }

    fn refused(query: &str) -> String {
        let read = read(&Params::of(query), PopScope::Queue("q".to_owned()), true);
        format!("{:?}", read.map(drop).expect_err("refused"))
    }

    /// data-plane 3, 54, 57
    #[test]
    fn absent_parameters_take_their_defaults() {
        let (pop, echo) = queue_pop("");
        assert_eq!((pop.batch, pop.partitions, pop.lease_s), (200, None, None));
        assert_eq!((pop.wait, pop.auto_ack, pop.conflation), (None, false, false));
        assert_eq!(pop.group, QUEUE_MODE);
        assert!(echo.is_none());
        assert_eq!(queue_pop("consumerGroup=").0.group, QUEUE_MODE);
        assert_eq!(queue_pop("wait=true").0.wait, Some(Duration::from_secs(30)));
    }

    /// data-plane 3
    #[test]
    fn numbers_at_or_below_zero_have_a_meaning() {
        let (pop, _) = queue_pop("batch=0&partitions=-1&leaseSeconds=0&wait=true&timeout=-7");
        assert_eq!((pop.batch, pop.partitions, pop.lease_s), (1, Some(0), None));
        assert_eq!(pop.wait, Some(Duration::ZERO));
        let (pop, _) = queue_pop("batch=99999999999&wait=true&timeout=999999999&leaseSeconds=5");
        assert_eq!((pop.batch, pop.lease_s), (i32::MAX, Some(5)));
        assert_eq!(pop.wait, Some(Duration::from_secs(600)));
    }

    /// data-plane 3 (autopilot), 42
    #[test]
    fn autopilot_fills_in_what_was_not_sent() {
        let echo = |query| queue_pop(query).1.map(|e| (e.partitions, e.batch));
        assert_eq!(echo("autopilot=true&consumerGroup=g"), Some((1, 100)));
        assert_eq!(echo("autopilot=true&consumerGroup=g&batch=7"), Some((1, 7)));
        assert_eq!(echo("autopilot=true&consumerGroup=g&partitions=4"), Some((4, 100)));
        assert_eq!(echo("autopilot=true&consumerGroup=g&partitions=4&batch=7"), None);
        assert_eq!(echo("autopilot=true"), None);
        let pinned = PopScope::Partition("q".to_owned(), "p".to_owned());
        let params = Params::of("autopilot=true&consumerGroup=g");
        let (pop, echo) = read(&params, pinned, true).expect("good");
        assert!(echo.is_none());
        assert_eq!(pop.batch, 200);
    }

    /// data-plane 51, 150
    #[test]
    fn refusals_name_the_parameter() {
        for (query, text) in [
            ("batch=x", "batch must be an integer"),
            ("wait=1", "wait must be true or false"),
            ("conflation=true", "consumerGroup"),
            ("conflation=true&consumerGroup=__QUEUE_MODE__", "consumerGroup"),
            ("conflation=true&consumerGroup=g&autoAck=true", "autoAck"),
            ("consumerGroup=%00", "consumerGroup holds the control character U+0000"),
        ] {
            let error = refused(query);
            assert!(error.contains(text), "{query}: {error}");
        }
    }

    /// data-plane 48, 123
    #[test]
    fn discovery_needs_a_label_and_modes_are_read() {
        assert!(discovered(&Params::of("namespace=&task=")).is_err());
        assert!(discovered(&Params::of("task=t")).is_ok());
        assert_eq!(queue_pop("subscriptionMode=NEW_only").0.start, Start::New);
        assert_eq!(queue_pop("subscriptionMode=whatever").0.start, Start::All);
        assert_eq!(queue_pop("").0.start, Start::New);
    }
}
