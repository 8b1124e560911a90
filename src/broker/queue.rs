//! Options of queues, and their deletion.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Broker;
use crate::db::Error;
use crate::db::queue::{Queue, QueueOptions};
use crate::types::id::TenantId;
use crate::types::limits::{CONFIGURED_LEASE_S, IMPLICIT_LEASE_S};

/// What a missing option means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigureMode {
    /// Its default. Absent `mode` means this: the rule that SDK 1.3.0 was built against.
    #[default]
    Replace,
    /// No change.
    Merge,
}

/// A configure request with names resolved.
#[derive(Clone, Debug)]
pub struct Configure {
    /// Queue, created if missing.
    pub queue: String,
    /// Options as given; `namespace` and `task` among them.
    pub options: Map<String, Value>,
    /// What a missing option means.
    pub mode: ConfigureMode,
}

/// Why options were refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
    /// A value that an option does not take.
    #[error("option {option}: {reason}")]
    Invalid {
        /// Name of the option.
        option: &'static str,
        /// Limit and value.
        reason: String,
    },
    /// The queue was deleted meanwhile.
    #[error("the queue was deleted meanwhile")]
    Gone,
}

/// Options in the order of the contract's table.
const INTS: &[(&str, i32)] = &[
    ("priority", 0),
    ("leaseTime", CONFIGURED_LEASE_S),
    ("retryLimit", 3),
    ("retryDelay", 1000),
    ("maxSize", 0),
    ("ttl", 3600),
    ("delayedProcessing", 0),
    ("windowBuffer", 0),
    ("retentionSeconds", 0),
    ("completedRetentionSeconds", 0),
    ("maxWaitTimeSeconds", 0),
    ("minPopWaitTime", 0),
    ("dedupWindowSeconds", 3600),
    ("retentionSinkHoldMaxSeconds", 604_800),
];
const BOOLS: &[(&str, bool)] = &[
    ("deadLetterQueue", true),
    ("dlqAfterMaxRetries", true),
    ("retentionEnabled", false),
    ("encryptionEnabled", false),
];

/// Options of a queue that a push or a pop made: defaults, with the shorter lease.
///
/// # Panics
/// Never: the defaults are valid.
#[must_use]
pub fn implicit_options() -> QueueOptions {
    let given = Map::from_iter([("leaseTime".to_owned(), json!(IMPLICIT_LEASE_S))]);
    resolve(&given, None).expect("the defaults are valid")
}

/// An integer, also as text that spells one.
fn int(option: &'static str, value: &Value) -> Result<i32, ConfigureError> {
    let number = match value {
        Value::Number(n) => n.as_i64().or_else(|| {
            let whole = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15)?;
            #[expect(clippy::cast_possible_truncation, reason = "whole and small")]
            Some(whole as i64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.and_then(|n| i32::try_from(n).ok()).ok_or_else(|| ConfigureError::Invalid {
        option,
        reason: format!("must be an integer of 32 bits, not {value}"),
    })
}

fn boolean(option: &'static str, value: &Value) -> Result<bool, ConfigureError> {
    match value {
        Value::Bool(b) => Ok(*b),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err(ConfigureError::Invalid {
            option,
            reason: format!("must be true or false, not {value}"),
        }),
    }
}

/// Resolves every option: given, else kept (`before`, in merge mode), else default.
fn resolve(
    given: &Map<String, Value>,
    before: Option<&Value>,
) -> Result<QueueOptions, ConfigureError> {
    let chosen = |name: &str| match given.get(name) {
        Some(Value::Null) => None,
        Some(value) => Some(value.clone()),
        None => before.and_then(|before| before.get(name)).cloned(),
    };
    let mut echo = Map::new();
    for (name, default) in INTS {
        let mut value = match chosen(name) {
            Some(value) => int(name, &value)?,
            None => *default,
        };
        match *name {
            "minPopWaitTime" => value = value.clamp(0, 60_000),
            "dedupWindowSeconds" => value = value.max(0),
            "retentionSinkHoldMaxSeconds" if !(60..=31_536_000).contains(&value) => {
                return Err(ConfigureError::Invalid {
                    option: name,
                    reason: format!("must be between 60 and 31536000, not {value}"),
                });
            }
            _ => {}
        }
        echo.insert((*name).to_owned(), json!(value));
    }
    for (name, default) in BOOLS {
        let value = match chosen(name) {
            Some(value) => boolean(name, &value)?,
            None => *default,
        };
        echo.insert((*name).to_owned(), json!(value));
    }
    let hold = match chosen("retentionSinkHold") {
        Some(Value::String(text)) => text,
        None => String::new(),
        Some(other) => {
            return Err(ConfigureError::Invalid {
                option: "retentionSinkHold",
                reason: format!("must be text, not {other}"),
            });
        }
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if hold.len() > 64 || !hold.chars().all(plain) {
        return Err(ConfigureError::Invalid {
            option: "retentionSinkHold",
            reason: format!("must match [A-Za-z0-9._-]{{0,64}}, not {hold:?}"),
        });
    }
    echo.insert("retentionSinkHold".to_owned(), json!(hold));

    let number = |name: &str| {
        let value = echo.get(name).and_then(Value::as_i64).unwrap_or_default();
        i32::try_from(value).unwrap_or_default()
    };
    let flag = |name: &str| echo.get(name).and_then(Value::as_bool).unwrap_or_default();
    Ok(QueueOptions {
        lease_time_s: number("leaseTime").max(1),
        retry_limit: number("retryLimit").max(0),
        dead_letter: flag("deadLetterQueue") || flag("dlqAfterMaxRetries"),
        delayed_processing_s: number("delayedProcessing").max(0),
        window_buffer_s: number("windowBuffer").max(0),
        min_pop_wait_ms: number("minPopWaitTime"),
        dedup_window_s: number("dedupWindowSeconds"),
        retention_enabled: flag("retentionEnabled"),
        retention_s: number("retentionSeconds").max(0),
        completed_retention_s: number("completedRetentionSeconds").max(0),
        max_wait_time_s: number("maxWaitTimeSeconds").max(0),
        encryption_enabled: flag("encryptionEnabled"),
        echo: Value::Object(echo),
    })
}

/// A label: given, else kept in merge mode, else empty.
fn label(
    name: &'static str,
    given: &Map<String, Value>,
    before: Option<&str>,
) -> Result<String, ConfigureError> {
    match given.get(name) {
        Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(ConfigureError::Invalid {
            option: name,
            reason: format!("must be text, not {other}"),
        }),
        None => Ok(before.unwrap_or_default().to_owned()),
    }
}

impl Broker {
    /// Creates or reconfigures a queue; gives what is in force (control-plane section 4).
    ///
    /// # Errors
    /// [`ConfigureError::Invalid`] names option, limit and value; nothing is changed then.
    pub async fn configure(
        &self,
        tenant: TenantId,
        configure: &Configure,
    ) -> Result<Arc<Queue>, ConfigureError> {
        let db = &self.inner.db;
        let before = db.queue_find(tenant, &configure.queue).await?;
        let kept = before.as_ref().filter(|_| configure.mode == ConfigureMode::Merge);
        let options = resolve(&configure.options, kept.map(|q| &q.options.echo))?;
        let namespace = label("namespace", &configure.options, kept.map(|q| q.namespace.as_str()))?;
        let task = label("task", &configure.options, kept.map(|q| q.task.as_str()))?;
        let name = &configure.queue;
        let queue = match before {
            Some(queue) => queue,
            None => db.queue_ensure(tenant, name, &namespace, &task, &options).await?,
        };
        let queue = db
            .queue_update(queue.no, &namespace, &task, &options)
            .await?
            .ok_or(ConfigureError::Gone)?;
        let queue = Arc::new(queue);
        self.inner.directory.remember(&queue);
        self.inner.wake.queue(queue.no);
        Ok(queue)
    }

    /// Deletes a queue with all its data; whether it existed.
    ///
    /// # Errors
    /// When the store fails; nothing is deleted then.
    pub async fn queue_delete(&self, tenant: TenantId, name: &str) -> Result<bool, Error> {
        let Some(no) = self.inner.db.queue_delete(tenant, name).await? else {
            return Ok(false);
        };
        self.inner.directory.forget_queue(no);
        self.inner.lanes.forget(no);
        self.inner.wake.queue(no);
        self.inner.event(super::Event::QueriesChanged);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_clamped_and_defaulted() {
        let given = json!({"minPopWaitTime": 90_000, "dedupWindowSeconds": -5, "leaseTime": "45",
            "retryLimit": null});
        let options = resolve(given.as_object().expect("object"), None).expect("valid");
        assert_eq!(options.min_pop_wait_ms, 60_000);
        assert_eq!(options.dedup_window_s, 0);
        assert_eq!(options.lease_time_s, 45);
        assert_eq!(options.retry_limit, 3);
        assert_eq!(options.echo["minPopWaitTime"], 60_000);
    }

    #[test]
    fn a_bad_option_is_named_with_its_value() {
        let given = json!({"leaseTime": true});
        let error = resolve(given.as_object().expect("object"), None).expect_err("refused");
        assert_eq!(error.to_string(), "option leaseTime: must be an integer of 32 bits, not true");
    }

    #[test]
    fn merge_keeps_what_is_not_named() {
        let before =
            resolve(&Map::from_iter([("ttl".to_owned(), json!(7))]), None).expect("valid").echo;
        let merged = resolve(&Map::new(), Some(&before)).expect("valid");
        assert_eq!(merged.echo["ttl"], 7);
    }
}
