//! Every bound of the layer, and the limiter that holds a guest's memory and tables to them.

use serde::Serialize;
use wasmtime::ResourceLimiter;

use super::{
    error::ErrorKind,
    types::{Level, LogLine, Logs},
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Every bound of the layer. The defaults suit modules compiled from Rust and C.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of an uploaded module (4 MiB: a compile costs about 2 CPU-seconds a MiB).
    pub upload_bytes: usize,
    /// Functions in a module (20,000: sixty thousand empty ones take 9 CPU-seconds to compile).
    pub functions: usize,
    /// Bytes of one function's body (512 KiB: the compiler's time and memory grow faster than the
    /// body).
    pub function_bytes: usize,
    /// Exports and imports of one module or component, each (1,000).
    pub exports: usize,
    /// Core modules in one component (64: a Python guest holds 37).
    pub core_modules: usize,
    /// Tables that one module may have when it runs (8: what componentizing makes needs 2).
    pub tables: usize,
    /// Bytes of a guest's linear memory (64 MiB: a Rust fold uses 0.4 MB, a JavaScript one 22 MB).
    pub memory_bytes: usize,
    /// Elements of one table of a guest (20,000: one for each function).
    pub table_elements: usize,
    /// Bytes of a guest's stack inside WebAssembly (512 KiB, on the stack of the calling thread).
    pub stack_bytes: usize,
    /// Wall time of one call of `start`, `resume`, `flush` or `describe`, in ms (2,000: a thousand
    /// messages take 2 ms).
    pub deadline_ms: u64,
    /// Bytes that one call may hand from the guest to the host, logs included (8 MiB).
    pub result_bytes: usize,
    /// Messages of one batch (1,000).
    pub batch_messages: usize,
    /// Bytes of payloads of one batch (4 MiB); a single message may be larger.
    pub batch_bytes: usize,
    /// Rounds of `need` in one batch (4).
    pub rounds: u32,
    /// State rows that one round may ask for by key, and that it may be given (10,000).
    pub rows: usize,
    /// Changes of the state in one outcome (10,000).
    pub ops: usize,
    /// Messages that one outcome may send (10,000).
    pub emits: usize,
    /// Causes that one outcome may tally (100).
    pub tallies: usize,
    /// Bytes of a state key (1 KiB).
    pub key_bytes: usize,
    /// Bytes of a state value (1 MiB).
    pub value_bytes: usize,
    /// Bytes of an emitted payload (1 MiB).
    pub payload_bytes: usize,
    /// Levels of arrays and objects in a value or payload (128).
    pub json_depth: usize,
    /// Bytes of a queue or partition name, of a manifest's name and version, and of a tally's cause
    /// (1,024).
    pub name_bytes: usize,
    /// Bytes of a transaction id (65,535, as for a push).
    pub transaction_id_bytes: usize,
    /// Bytes of a reason, failure or panic text that are kept (4 KiB); the rest is cut.
    pub text_bytes: usize,
    /// Queues that a manifest may name (100).
    pub sinks: usize,
    /// Lines of log that are kept of one batch (100).
    pub log_lines: usize,
    /// Bytes of a log line that are kept (4 KiB).
    pub log_line_bytes: usize,
    /// Instances alive at once per call that may run at once (4): a fold holds its instance while
    /// rows are read for it.
    pub slots_per_call: usize,
    /// How long a call waits for a free instance, in ms (5,000).
    pub slot_wait_ms: u64,
    /// Compiled modules kept ready in memory (64); queries that hold a module keep it beyond that.
    pub modules_in_memory: usize,
    /// Bytes of compiled modules kept on disk (1 GiB); the oldest files go first.
    pub disk_cache_bytes: u64,
    /// CPU time of one compile, in seconds (60).
    pub compile_cpu_s: u64,
    /// Wall time of one compile, in ms (120,000).
    pub compile_wall_ms: u64,
    /// Address space of one compile, in bytes (4 GiB).
    pub compile_memory_bytes: u64,
    /// Bytes of compiled code of one module (256 MiB).
    pub compiled_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            upload_bytes: 4 * MIB,
            functions: 20_000,
            function_bytes: 512 * KIB,
            exports: 1_000,
            core_modules: 64,
            tables: 8,
            memory_bytes: 64 * MIB,
            table_elements: 20_000,
            stack_bytes: 512 * KIB,
            deadline_ms: 2_000,
            result_bytes: 8 * MIB,
            batch_messages: 1_000,
            batch_bytes: 4 * MIB,
            rounds: 4,
            rows: 10_000,
            ops: 10_000,
            emits: 10_000,
            tallies: 100,
            key_bytes: KIB,
            value_bytes: MIB,
            payload_bytes: MIB,
            json_depth: 128,
            name_bytes: KIB,
            transaction_id_bytes: 65_535,
            text_bytes: 4 * KIB,
            sinks: 100,
            log_lines: 100,
            log_line_bytes: 4 * KIB,
            slots_per_call: 4,
            slot_wait_ms: 5_000,
            modules_in_memory: 64,
            disk_cache_bytes: 1 << 30,
            compile_cpu_s: 60,
            compile_wall_ms: 120_000,
            compile_memory_bytes: 4 << 30,
            compiled_bytes: 256 << 20,
        }
    }
}

/// Holds one store to its limits, and remembers what it refused.
///
/// A refusal traps instead of answering -1, so that a limit can't be seen from inside and a result
/// never depends on it. The maximum that a module declares for itself is no limit of the host:
/// beyond it the guest gets the -1 of the specification.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_bytes: usize,
    table_elements: usize,
    peak_memory_bytes: usize,
    growing_past_own_maximum: bool,
    stopped: Option<ErrorKind>,
}

impl Limiter {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            memory_bytes: limits.memory_bytes,
            table_elements: limits.table_elements,
            peak_memory_bytes: 0,
            growing_past_own_maximum: false,
            stopped: None,
        }
    }

    /// The largest size that was granted, in bytes.
    pub(super) fn peak_memory_bytes(&self) -> usize {
        self.peak_memory_bytes
    }

    /// The error that the limiter ended the call with, if it did.
    pub(super) fn take_stopped(&mut self) -> Option<ErrorKind> {
        self.stopped.take()
    }

    fn growing(
        &mut self,
        what: &'static str,
        [current, desired, limit]: [usize; 3],
        own_maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.growing_past_own_maximum = own_maximum.is_some_and(|own| own < desired);
        if desired <= limit || own_maximum.is_some_and(|own| own < limit) {
            return Ok(true);
        }
        let [current, asked, limit] = [current, desired, limit].map(|n| n as u64);
        self.stopped = Some(ErrorKind::Memory { what, current, asked, limit });
        wasmtime::bail!("{what} limit")
    }

    fn grow_failed(&mut self, error: &wasmtime::Error) -> wasmtime::Result<()> {
        if self.growing_past_own_maximum {
            return Ok(());
        }
        let text = format!("a guest's memory could not grow: {error:#}");
        self.stopped = Some(ErrorKind::Runtime(text));
        wasmtime::bail!("growth failed")
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let granted = self.growing("bytes", [current, desired, self.memory_bytes], maximum)?;
        if !self.growing_past_own_maximum {
            self.peak_memory_bytes = self.peak_memory_bytes.max(desired);
        }
        Ok(granted)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.grow_failed(&error)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.growing("table elements", [current, desired, self.table_elements], maximum)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        self.grow_failed(&error)
    }
}

/// Collects the lines of one batch within their limits.
#[derive(Debug)]
pub(super) struct LogBook {
    lines_max: usize,
    line_bytes_max: usize,
    logs: Logs,
    panic: Option<String>,
}

impl LogBook {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            lines_max: limits.log_lines,
            line_bytes_max: limits.log_line_bytes,
            logs: Logs::default(),
            panic: None,
        }
    }

    /// Takes a line. The last panic is kept even when the book is full, because it explains the
    /// trap that follows.
    pub(super) fn write(&mut self, level: Level, text: &str) {
        let kept = cut(text, self.line_bytes_max);
        if level == Level::Error && kept.starts_with("panicked") {
            self.panic = Some(storable(kept));
        }
        let lost = if self.logs.lines.len() < self.lines_max {
            self.logs.lines.push(LogLine { level, text: storable(kept) });
            text.len().saturating_sub(kept.len())
        } else {
            self.logs.dropped_lines = self.logs.dropped_lines.saturating_add(1);
            text.len()
        };
        self.logs.dropped_bytes = self.logs.dropped_bytes.saturating_add(lost as u64);
    }

    /// The text of the last panic.
    pub(super) fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    pub(super) fn into_logs(self) -> Logs {
        self.logs
    }
}

/// The longest prefix of at most `bytes_max` bytes that ends between characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

/// A text without U+0000, which PostgreSQL can't keep.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
