//! A fold for tests: it counts by key in windows, and misbehaves when a message says so.

use foldmq_guest::prelude::*;
use foldmq_guest::{Failure, log};

/// Parameters of a registration.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub struct Params {
    /// Size of the windows, ms.
    window_ms: u64,
    /// Event time at `at` of a message; else the time at which it was pushed.
    event_time: bool,
    /// Silence after which the clock becomes the watermark, ms.
    idle_ms: u64,
    /// Longest allowed lateness, ms.
    lateness_ms: u64,
    /// How long windows stay open after their end, ms.
    grace_ms: u64,
    /// Queue of the windows.
    sink: String,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            window_ms: 1_000,
            event_time: false,
            idle_ms: 0,
            lateness_ms: 0,
            grace_ms: 0,
            sink: "probe.out".to_owned(),
        }
    }
}

/// A message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Key of its window.
    key: String,
    /// Added up.
    n: f64,
    /// Event time, Unix ms.
    at: i64,
    /// Panic with this text.
    panic: Option<String>,
    /// Log this line.
    log: Option<String>,
    /// Loop for ever.
    spin: bool,
    /// Allocate for ever.
    hoard: bool,
    /// Stop the query with this text.
    halt: Option<String>,
}

fn behave(message: Message) -> Result<Message, Refuse> {
    if let Some(line) = &message.log {
        log::info(line);
    }
    if let Some(text) = &message.panic {
        panic!("{text}");
    }
    if let Some(text) = &message.halt {
        return Err(Refuse::Fail(Failure::Halt(text.clone())));
    }
    if message.spin {
        loop {
            std::hint::spin_loop();
        }
    }
    if message.hoard {
        let mut kept: Vec<Vec<u8>> = Vec::new();
        loop {
            kept.push(vec![1; 1 << 20]);
            std::hint::black_box(&kept);
        }
    }
    Ok(message)
}

/// The fold.
///
/// # Errors
/// For an empty window.
pub fn probe(params: Params) -> Result<impl Fold, String> {
    if params.window_ms == 0 {
        return Err("window_ms must be above 0".to_owned());
    }
    let windows = stream::<Message>()
        .try_map(behave)
        .key_by(|message| message.key.clone())
        .tumbling(millis(params.window_ms))
        .grace(millis(params.grace_ms));
    let windows = if params.event_time {
        windows
            .event_time(|message| message.at)
            .allowed_lateness(millis(params.lateness_ms))
            .idle_ms(u32::try_from(params.idle_ms).unwrap_or(u32::MAX))
    } else {
        windows
    };
    Ok(windows
        .aggregate(|a| a.count("count").sum("sum", |message| message.n))
        .with_window("key", "window_start", "window_end")
        .sink(params.sink))
}

foldmq_guest::export_fold!(probe);
