//! Which query runs which module: registration, and what this broker runs.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Handle;
use super::runner::start_of;
use crate::broker::Event;
use crate::db;
use crate::db::hosted::{HostedRow, RunState};
use crate::db::query::{HostedSpec, Registered, Registration};
use crate::fold::{self, ModuleHash, Timers as FoldTimers};
use crate::types::cycle::Timers;
use crate::types::id::{QueryNo, TenantId};
use crate::types::limits::HOSTED_BATCH;

/// Time between looks at the registrations where no hint comes.
const LOOK: Duration = Duration::from_secs(5);
/// Largest batch of a hosted query.
const BATCH_MAX: i64 = 10_000;

/// A registration of a hosted query as requested.
#[derive(Clone, Debug)]
pub struct HostedRegistration {
    /// Owner.
    pub tenant: TenantId,
    /// Name.
    pub name: String,
    /// Queue that it reads.
    pub source_queue: String,
    /// Queue that it writes, for the registration's own record.
    pub sink_queue: Option<String>,
    /// Hash that the caller expects, if it names one.
    pub config_hash: Option<String>,
    /// Delete the state when the hash differs.
    pub reset: bool,
    /// Module to run.
    pub module: ModuleHash,
    /// JSON text of the parameters; empty where none are given.
    pub params: String,
    /// `earliest`, `latest` or an ISO-8601 instant; `earliest` where absent.
    pub start: Option<Value>,
    /// Messages a batch, 1 to 10,000.
    pub batch: Option<i64>,
    /// `dead_letter` or `pause`.
    pub on_poison: Option<String>,
    /// Register without running.
    pub paused: bool,
}

/// Why a hosted registration was refused; nothing is changed then.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// A field that is out of its bounds.
    #[error("{field}: {reason}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Limit and value.
        reason: String,
    },
    /// No such module of this tenant.
    #[error("module {0} is not uploaded")]
    ModuleNotFound(ModuleHash),
    /// The supplied hash is not that of module and params.
    #[error("config_hash is {supplied}, but module and params give {expected}")]
    HashMismatch {
        /// As sent.
        supplied: String,
        /// As computed.
        expected: String,
    },
    /// The module does not compile, or refuses the params.
    #[error(transparent)]
    Fold(#[from] fold::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] db::Error),
}

/// The config hash of a hosted query: the module's SHA-256; with params the SHA-256 over the
/// module hash and the canonical JSON of the params, because other params give accumulators
/// another meaning.
#[must_use]
pub fn config_hash(module: ModuleHash, params: Option<&Value>) -> String {
    let Some(params) = params.filter(|params| !is_empty(params)) else {
        return module.to_string();
    };
    let mut hash = Sha256::new();
    hash.update(module.as_bytes());
    let mut text = String::new();
    canonical(params, &mut text);
    hash.update(text.as_bytes());
    hex::encode(hash.finalize())
}

fn is_empty(params: &Value) -> bool {
    params.is_null() || params.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Compact JSON with the members of objects in byte order.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (i, (name, value)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

fn invalid(field: &'static str, reason: String) -> RegisterError {
    RegisterError::Invalid { field, reason }
}

impl Handle {
    /// Registers a hosted query: outcomes are those of every registration (streams Q10-Q32).
    ///
    /// # Errors
    /// Any [`RegisterError`]; nothing is changed then.
    pub async fn register(&self, r: HostedRegistration) -> Result<Registered, RegisterError> {
        let params = if r.params.is_empty() {
            None
        } else {
            let parsed = serde_json::from_str::<Value>(&r.params);
            Some(parsed.map_err(|e| invalid("params", format!("must be JSON: {e}")))?)
        };
        let config_hash = config_hash(r.module, params.as_ref());
        if let Some(supplied) = r.config_hash.filter(|supplied| *supplied != config_hash) {
            return Err(RegisterError::HashMismatch { supplied, expected: config_hash });
        }
        let start = r.start.unwrap_or_else(|| Value::from("earliest"));
        check_start(&start)?;
        let batch = r.batch.unwrap_or_else(|| i64::from(HOSTED_BATCH));
        if !(1..=BATCH_MAX).contains(&batch) {
            let reason = format!("must be between 1 and {BATCH_MAX}, not {batch}");
            return Err(invalid("batch", reason));
        }
        let on_poison = r.on_poison.unwrap_or_else(|| "dead_letter".to_owned());
        if !matches!(on_poison.as_str(), "dead_letter" | "pause") {
            let reason = format!("must be dead_letter or pause, not {on_poison:?}");
            return Err(invalid("on_poison", reason));
        }
        let known = self.shared.broker.db().module_list(r.tenant, Some(r.module.as_bytes()));
        if known.await?.is_empty() {
            return Err(RegisterError::ModuleNotFound(r.module));
        }
        let module = self.module(r.tenant, r.module).await?;
        let given = if params.as_ref().is_none_or(is_empty) { String::new() } else { r.params };
        let for_guest = given.clone();
        let permit = self.shared.permits.acquire().await.expect("the semaphore is never closed");
        let described = tokio::task::spawn_blocking(move || module.describe(&for_guest)).await;
        drop(permit);
        let manifest = match described {
            Ok(manifest) => manifest?,
            Err(cause) => std::panic::resume_unwind(cause.into_panic()),
        };
        let spec = HostedSpec {
            module_hash: *r.module.as_bytes(),
            params: given,
            start: start.clone(),
            batch: i32::try_from(batch).expect("bounded above"),
            on_poison,
            sinks: manifest.sinks.clone(),
            timers: match manifest.timers {
                FoldTimers::Clock => Timers::Clock,
                FoldTimers::Watermark => Timers::Watermark,
            },
            idle_ms: i32::try_from(manifest.idle_ms).unwrap_or(i32::MAX),
            paused: r.paused,
        };
        let registration = Registration {
            tenant: r.tenant,
            name: r.name,
            source_queue: r.source_queue,
            sink_queue: r.sink_queue,
            config_hash,
            reset: r.reset,
            hosted: Some(spec),
        };
        Ok(self.shared.broker.register(&registration, Some(start_of(&start))).await?)
    }

    /// Keeps what runs here equal to what is registered.
    pub(super) async fn registry_loop(self) {
        let gauge = self.shared.broker.metrics().loops.with_label_values(&["registry"]);
        gauge.set(1);
        let mut events = self.shared.broker.events();
        let mut started: HashMap<QueryNo, (HostedRow, CancellationToken)> = HashMap::new();
        loop {
            match self.shared.broker.db().hosted_list(None, None).await {
                Ok(rows) => self.reconcile(rows, &mut started),
                Err(cause) => {
                    tracing::debug!(%cause, "registrations were not read");
                    if !self.pause(Duration::from_millis(300)).await {
                        break;
                    }
                    continue;
                }
            }
            tokio::select! {
                () = self.shared.stop.cancelled() => break,
                () = tokio::time::sleep(LOOK) => {}
                event = events.recv() => match event {
                    Ok(Event::QueriesChanged) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break,
                }
            }
        }
        for (_, stop) in started.into_values() {
            stop.cancel();
        }
        gauge.set(0);
    }

    fn reconcile(
        &self,
        rows: Vec<HostedRow>,
        started: &mut HashMap<QueryNo, (HostedRow, CancellationToken)>,
    ) {
        let wanted: HashMap<QueryNo, HostedRow> = rows
            .into_iter()
            .filter(|row| row.state == RunState::Running)
            .map(|row| (row.query.no, row))
            .collect();
        started.retain(|no, (row, stop)| {
            let keep = !stop.is_cancelled() && wanted.get(no).is_some_and(|new| same(row, new));
            if !keep {
                tracing::info!(query = row.query.name, "hosted query ends here");
                stop.cancel();
                self.shared.running.lock().expect("no holder panics").remove(no);
            }
            keep
        });
        for (no, row) in wanted {
            if started.contains_key(&no) || self.shared.stop.is_cancelled() {
                continue;
            }
            tracing::info!(query = row.query.name, "hosted query begins here");
            let stop = self.shared.stop.child_token();
            started.insert(no, (row.clone(), stop.clone()));
            self.shared.tasks.spawn(self.clone().run_query(row, stop));
        }
    }
}

/// Whether a running query need not be started anew.
fn same(a: &HostedRow, b: &HostedRow) -> bool {
    a.module_hash == b.module_hash
        && a.params == b.params
        && a.batch == b.batch
        && a.pause_on_poison == b.pause_on_poison
        && a.query.source_queue == b.query.source_queue
        && a.query.config_hash == b.query.config_hash
}

fn check_start(start: &Value) -> Result<(), RegisterError> {
    let good = start.as_str().is_some_and(|text| {
        matches!(text, "earliest" | "latest") || text.parse::<jiff::Timestamp>().is_ok()
    });
    if good {
        return Ok(());
    }
    let reason = format!("must be \"earliest\", \"latest\" or an ISO-8601 instant, not {start}");
    Err(invalid("start", reason))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_params_leave_the_hash_of_the_module() {
        let module = ModuleHash::of(b"m");
        assert_eq!(config_hash(module, None), module.to_string());
        assert_eq!(config_hash(module, Some(&json!({}))), module.to_string());
        assert_ne!(config_hash(module, Some(&json!({"a": 1}))), module.to_string());
    }

    #[test]
    fn params_are_hashed_in_canonical_form() {
        let module = ModuleHash::of(b"m");
        let a: Value = serde_json::from_str(r#"{"b":[1,{"d":2,"c":3}],"a":"x"}"#).expect("json");
        let b: Value = serde_json::from_str(r#"{ "a":"x","b":[1,{"c":3,"d":2}]}"#).expect("json");
        assert_eq!(config_hash(module, Some(&a)), config_hash(module, Some(&b)));
        let mut text = String::new();
        canonical(&a, &mut text);
        assert_eq!(text, r#"{"a":"x","b":[1,{"c":3,"d":2}]}"#);
    }
}
