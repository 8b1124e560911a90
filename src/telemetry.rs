//! Logs and metrics of the process.

use std::io::IsTerminal as _;

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error. `filter` is in the syntax of `RUST_LOG`.
///
/// A second call in one process changes nothing.
pub fn init(filter: &str, format: LogFormat) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_syntax| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    let ansi = std::io::stderr().is_terminal();
    let text = tracing_subscriber::fmt::layer().with_ansi(ansi).with_writer(std::io::stderr);
    let outcome = match format {
        LogFormat::Text => registry.with(text).try_init(),
        LogFormat::Json => registry.with(text.json()).try_init(),
    };
    drop(outcome);
}

/// Every metric of the process, with its registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Requests by operation: push, pop, ack.
    pub requests: IntCounterVec,
    /// Messages by operation: push, pop, ack.
    pub messages: IntCounterVec,
    /// Acks that failed.
    pub ack_failed: IntCounter,
    /// Cycles by outcome: committed, refused, failed.
    pub cycles: IntCounterVec,
    /// Parked long polls by queue.
    pub parked: IntGaugeVec,
    /// Commits that carried several operations, by operation.
    pub batches: IntCounterVec,
    /// Operations in those commits, by operation.
    pub batch_items: IntCounterVec,
    /// Messages dead-lettered.
    pub dead_letters: IntCounter,
    /// Payloads that could not be sealed and were stored plain.
    pub cipher_failures: IntCounter,
    /// Messages removed by age.
    pub removed: IntCounter,
    /// Failed calls of the store.
    pub db_errors: IntCounter,
    /// Messages folded by hosted queries, by query.
    pub hosted_messages: IntCounterVec,
    /// Messages emitted by hosted queries, by query.
    pub hosted_emits: IntCounterVec,
    /// Cycles of hosted queries, by query and outcome.
    pub hosted_cycles: IntCounterVec,
    /// Messages left out by hosted queries, by query and cause.
    pub hosted_tallies: IntCounterVec,
    /// Time in guests, microseconds, by query.
    pub hosted_guest_us: IntCounterVec,
    /// Time from claim to commit, microseconds, by query.
    pub hosted_cycle_us: IntCounterVec,
    /// Messages behind, by query, as last read.
    pub hosted_lag: IntGaugeVec,
    /// Background loops that run; 0 for one that is stuck or gone.
    pub loops: IntGaugeVec,
    /// Wake-up listener connected.
    pub listening: IntGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Registers every family.
    ///
    /// # Panics
    /// Never: names are constants and differ.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels).expect("constant names");
            registry.register(Box::new(metric.clone())).expect("names differ");
            metric
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels).expect("constant names");
            registry.register(Box::new(metric.clone())).expect("names differ");
            metric
        };
        let counter = |name: &str, help: &str| {
            let metric = IntCounter::new(name, help).expect("constant names");
            registry.register(Box::new(metric.clone())).expect("names differ");
            metric
        };
        let listening =
            IntGauge::new("foldmq_listening", "Wake-up listener connected").expect("constant");
        registry.register(Box::new(listening.clone())).expect("names differ");
        Self {
            requests: counters("foldmq_requests_total", "Requests by operation", &["op"]),
            messages: counters("foldmq_messages_total", "Messages by operation", &["op"]),
            ack_failed: counter("foldmq_ack_failed_total", "Acks that failed"),
            cycles: counters("foldmq_cycles_total", "Cycles by outcome", &["outcome"]),
            parked: gauges("queen_parked_long_polls", "Parked long polls", &["queue"]),
            batches: counters("queen_batches_fired_total", "Commits by operation", &["op"]),
            batch_items: counters(
                "queen_batch_items_fired_total",
                "Operations in those commits",
                &["op"],
            ),
            dead_letters: counter("foldmq_dead_letters_total", "Messages dead-lettered"),
            cipher_failures: counter(
                "foldmq_cipher_failures_total",
                "Payloads that could not be sealed and were stored plain",
            ),
            removed: counter("foldmq_removed_total", "Messages removed by age"),
            db_errors: counter("foldmq_db_errors_total", "Failed calls of the store"),
            hosted_messages: counters(
                "foldmq_query_messages_total",
                "Messages folded by hosted queries",
                &["query"],
            ),
            hosted_emits: counters(
                "foldmq_query_emits_total",
                "Messages emitted by hosted queries",
                &["query"],
            ),
            hosted_cycles: counters(
                "foldmq_query_cycles_total",
                "Cycles of hosted queries by outcome",
                &["query", "outcome"],
            ),
            hosted_tallies: counters(
                "foldmq_query_tallies_total",
                "Messages left out by cause",
                &["query", "cause"],
            ),
            hosted_guest_us: counters(
                "foldmq_query_guest_microseconds_total",
                "Time in guests",
                &["query"],
            ),
            hosted_cycle_us: counters(
                "foldmq_query_cycle_microseconds_total",
                "Time from claim to commit",
                &["query"],
            ),
            hosted_lag: gauges("foldmq_query_lag_messages", "Messages behind", &["query"]),
            loops: gauges("foldmq_loop_running", "Background loops that run", &["loop"]),
            listening,
            registry,
        }
    }

    /// The text exposition of every registered family.
    #[must_use]
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

/// An error with all its causes on one line.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}
