//! Health and metrics (control-plane 12 and 13).

use std::fmt::Write;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

use super::AppState;
use crate::telemetry::{self, Metrics};

const ENGINE: &str = "foldmq";
/// How long the database may take to answer before the server calls itself unhealthy.
const PING_MAX: Duration = Duration::from_secs(5);
const OPS: [&str; 3] = ["push", "pop", "ack"];

/// `GET /health`: 503 while the database does not answer.
pub(super) async fn health(State(app): State<AppState>) -> Response {
    let answered = match tokio::time::timeout(PING_MAX, app.broker.db().ping()).await {
        Ok(Ok(())) => true,
        Ok(Err(cause)) => {
            tracing::warn!(cause = telemetry::chain(&cause), "the database did not answer a ping");
            false
        }
        Err(_elapsed) => {
            tracing::warn!("the database did not answer a ping in time");
            false
        }
    };
    let (status, word, database) = if answered {
        (StatusCode::OK, "healthy", "connected")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "unhealthy", "disconnected")
    };
    let version = env!("CARGO_PKG_VERSION");
    let body = json!({
        "status": word, "database": database, "engine": ENGINE, "version": version,
    });
    (status, Json(body)).into_response()
}

/// `GET /status`: the process answers, whatever the database does.
pub(super) async fn status() -> Json<Value> {
    Json(json!({"status": "ok", "engine": ENGINE}))
}

/// `GET /metrics`: the figures of this process as JSON; unknown ones are 0.
pub(super) async fn metrics(State(app): State<AppState>) -> Json<Value> {
    let uptime_s = app.started.elapsed().as_secs_f64();
    let metrics = app.broker.metrics();
    let requests: u64 = OPS.iter().map(|op| requests(metrics, op)).sum();
    let messages: u64 = OPS.iter().map(|op| messages(metrics, op)).sum();
    let (size, idle, waiting) = app.broker.db().pool_status();
    let (user_us, system_us) = cpu_us();
    Json(json!({
        "uptime": uptime_s,
        "requests": {"total": requests, "rate": rate(requests, uptime_s)},
        "messages": {"total": messages, "rate": rate(messages, uptime_s)},
        "database": {"poolSize": size, "idleConnections": idle, "waitingRequests": waiting},
        "memory": {
            "rss": resident_bytes(), "heapTotal": 0, "heapUsed": 0, "external": 0,
            "arrayBuffers": 0,
        },
        "cpu": {"user": user_us, "system": system_us},
    }))
}

/// `GET /metrics/prometheus`
pub(super) async fn prometheus(State(app): State<AppState>) -> Response {
    let mut text = app.broker.metrics().render();
    text.push_str(&derived(&app));
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

/// Families of the contract that follow from what is counted under other names.
fn derived(app: &AppState) -> String {
    let metrics = app.broker.metrics();
    let mut out = String::new();
    family(&mut out, "queen_uptime_seconds", "gauge", "Seconds since the process started");
    sample(&mut out, "queen_uptime_seconds", app.started.elapsed().as_secs());
    let name = "queen_process_resident_memory_bytes";
    family(&mut out, name, "gauge", "Resident memory of the process");
    sample(&mut out, name, resident_bytes());
    process(&mut out, metrics);
    let (size, idle, _) = app.broker.db().pool_status();
    for (name, help, value) in [
        ("queen_db_pool_size", "Open connections of the pool", size),
        ("queen_db_pool_idle", "Idle connections of the pool", idle),
        ("queen_db_pool_active", "Connections in use", size.saturating_sub(idle)),
    ] {
        family(&mut out, name, "gauge", help);
        sample(&mut out, name, value);
    }
    out
}

fn process(out: &mut String, metrics: &Metrics) {
    for op in OPS {
        let name = format!("queen_process_{op}_requests_total");
        family(out, &name, "counter", "Requests of this process");
        sample(out, &name, requests(metrics, op));
        let name = format!("queen_process_{op}_messages_total");
        family(out, &name, "counter", "Messages of this process");
        sample(out, &name, messages(metrics, op));
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("memory takes everything");
}

fn sample(out: &mut String, name: &str, value: impl std::fmt::Display) {
    writeln!(out, "{name} {value}").expect("memory takes everything");
}

fn requests(metrics: &Metrics, op: &str) -> u64 {
    metrics.requests.with_label_values(&[op]).get()
}

fn messages(metrics: &Metrics, op: &str) -> u64 {
    metrics.messages.with_label_values(&[op]).get()
}

/// Average since the start.
fn rate(total: u64, uptime_s: f64) -> f64 {
    let total = f64::from(u32::try_from(total).unwrap_or(u32::MAX));
    if uptime_s > 0.0 { total / uptime_s } else { 0.0 }
}

/// Processor time of the process in user and system mode, microseconds.
fn cpu_us() -> (i64, i64) {
    getrusage(UsageWho::RUSAGE_SELF).map_or((0, 0), |usage| {
        (usage.user_time().num_microseconds(), usage.system_time().num_microseconds())
    })
}

/// Resident memory; 0 on systems without `/proc`.
fn resident_bytes() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| vm_rss(&status))
}

fn vm_rss(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// control-plane 13
    #[test]
    fn process_counters_have_help_type_and_value() {
        let metrics = Metrics::new();
        metrics.requests.with_label_values(&["push"]).inc_by(3);
        let mut out = String::new();
        process(&mut out, &metrics);
        assert!(out.contains("# TYPE queen_process_push_requests_total counter\n"));
        assert!(out.contains("\nqueen_process_push_requests_total 3\n"));
        assert!(out.contains("\nqueen_process_ack_messages_total 0\n"));
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(vm_rss("Name:\tx\nVmRSS:\t    12 kB\n"), 12 * 1024);
        assert_eq!(vm_rss("Name:\tx\n"), 0);
    }
}
