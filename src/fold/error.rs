//! Errors of the layer: [`UploadError`] for what is refused before it ever runs, [`Error`] for
//! everything later.
//!
//! An [`Error`] knows whose fault it is ([`Blame`]) and whether the same inputs would give it
//! again; the caller decides with these two what to do with a batch, never by the text.

use std::fmt;

use serde::Serialize;

use super::{
    outcome::Violation,
    refusal::UploadError,
    types::{Logs, Usage},
};

/// Result of most functions of this layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Who has to act on an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    /// The uploaded module, its params or the messages that it choked on.
    Guest,
    /// This server: its resources, settings or a fault of its own.
    Host,
}

/// The kinds of traps of WebAssembly, as far as a reader cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrapKind {
    /// The guest gave up by itself: a panic, an abort, an assertion.
    Unreachable,
    /// Recursion deeper than [`super::Limits::stack_bytes`].
    StackOverflow,
    /// A read or write outside the guest's memory.
    MemoryOutOfBounds,
    /// An access outside a table, or a null or wrongly typed function pointer.
    BadTableAccess,
    /// Integer division by zero or overflow, or a float that fits no integer.
    Arithmetic,
    /// Any other trap.
    Other,
}

impl TrapKind {
    /// The kind in words, as it stands in error texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::StackOverflow => "stack overflow",
            Self::MemoryOutOfBounds => "memory access out of bounds",
            Self::BadTableAccess => "bad table access",
            Self::Arithmetic => "arithmetic error",
            Self::Other => "trap",
        }
    }
}

/// What a guest asked for when it was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Try the batch again, later.
    Retry,
    /// Stop the query until an operator acts.
    Halt,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The guest trapped.
    #[error("{}: {message}", .kind.as_str())]
    Trap {
        /// Which trap.
        kind: TrapKind,
        /// The panic's text where the guest logged one, else the runtime's words.
        message: String,
        /// Names of the functions on the guest's stack, innermost first.
        backtrace: Vec<String>,
    },
    /// A call took longer than its deadline.
    #[error("deadline: a call ran longer than {limit_ms} ms")]
    Deadline {
        /// The deadline in ms.
        limit_ms: u64,
    },
    /// The guest asked for more memory or table elements than it may have.
    #[error("memory limit: {asked} {what} asked, {limit} allowed")]
    Memory {
        /// `bytes` or `table elements`.
        what: &'static str,
        /// What the guest had before.
        current: u64,
        /// What it wanted in total.
        asked: u64,
        /// What it may have.
        limit: u64,
    },
    /// One call handed more data to the host than is allowed.
    #[error("result too large: more than {limit} bytes in one call")]
    ResultTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// What the guest returned is no value of the interface (bad pointer, length, text or
    /// discriminant).
    #[error("unreadable result: {0}")]
    BadResult(String),
    /// What the guest returned is readable and not allowed.
    #[error("bad outcome: {0}")]
    BadOutcome(Violation),
    /// The guest returned a failure.
    #[error("{text}")]
    Failure {
        /// What the guest asks for.
        failure: Failure,
        /// The guest's reason.
        text: String,
    },
    /// The guest refused the params.
    #[error("params refused: {0}")]
    Params(String),
    /// The guest asked for rows too often.
    #[error("too many rounds: rows were asked for more than {limit} times in one batch")]
    TooManyRounds {
        /// The limit.
        limit: u32,
    },
    /// A request for rows found more than may be handed over.
    #[error("too many rows: {asked} match what was asked for, limit {limit}")]
    TooManyRows {
        /// Rows found.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// The caller handed over more than a call may take.
    #[error("input too large: {asked} {what}, limit {limit}")]
    Input {
        /// What was counted.
        what: &'static str,
        /// The number given.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// No instance was free in time.
    #[error("busy: all {slots} instances are in use; raise `{setting}` or wait")]
    Busy {
        /// How many there are.
        slots: usize,
        /// The setting that bounds them.
        setting: &'static str,
    },
    /// The module is refused.
    #[error(transparent)]
    Upload(UploadError),
    /// The compiler refused the module, or ran over its limits.
    #[error("compile: {0}")]
    Compile(String),
    /// A file or process of the host failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The caller could not give the module's bytes.
    #[error("the module's bytes could not be fetched")]
    Source(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The bytes are not those of the hash.
    #[error("the stored module does not have its hash: {expected} expected, {found} found")]
    Corrupt {
        /// The hash asked for.
        expected: super::ModuleHash,
        /// The hash of the bytes.
        found: super::ModuleHash,
    },
    /// The runtime failed in a way that is the host's fault.
    #[error("runtime: {0}")]
    Runtime(String),
}

impl ErrorKind {
    /// A stable code for clients, metrics and stored error records.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Trap { .. } => "trap",
            Self::Deadline { .. } => "deadline",
            Self::Memory { .. } => "memory",
            Self::ResultTooLarge { .. } => "result_too_large",
            Self::BadResult(_) => "bad_result",
            Self::BadOutcome(_) => "bad_outcome",
            Self::Failure { failure: Failure::Retry, .. } => "failure_retry",
            Self::Failure { failure: Failure::Halt, .. } => "failure_halt",
            Self::Params(_) => "params",
            Self::TooManyRounds { .. } => "too_many_rounds",
            Self::TooManyRows { .. } => "too_many_rows",
            Self::Input { .. } => "input",
            Self::Busy { .. } => "busy",
            Self::Upload(error) => error.code(),
            Self::Compile(_) => "compile",
            Self::Io { .. } => "io",
            Self::Source(_) => "source",
            Self::Corrupt { .. } => "corrupt",
            Self::Runtime(_) => "runtime",
        }
    }

    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Trap { .. }
            | Self::Deadline { .. }
            | Self::Memory { .. }
            | Self::ResultTooLarge { .. }
            | Self::BadResult(_)
            | Self::BadOutcome(_)
            | Self::Failure { .. }
            | Self::Params(_)
            | Self::TooManyRounds { .. }
            | Self::TooManyRows { .. }
            | Self::Upload(_)
            | Self::Compile(_) => Blame::Guest,
            Self::Input { .. }
            | Self::Busy { .. }
            | Self::Io { .. }
            | Self::Source(_)
            | Self::Corrupt { .. }
            | Self::Runtime(_) => Blame::Host,
        }
    }

    /// Whether the same inputs give the same error again, on any host.
    ///
    /// Only the guest's faults can, and a deadline is none: the wall clock decides it. A compile is
    /// cut off by the clock as well.
    pub const fn is_deterministic(&self) -> bool {
        matches!(self.blame(), Blame::Guest)
            && !matches!(self, Self::Deadline { .. } | Self::Compile(_))
    }
}

/// An error of this layer, with what the guest logged and used until then.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    logs: Logs,
    usage: Usage,
}

impl Error {
    /// An error of a call, with the trace that it left.
    pub(super) fn traced(kind: ErrorKind, logs: Logs, usage: Usage) -> Self {
        Self(Box::new(Inner { kind, logs, usage }))
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whose fault it is.
    pub fn blame(&self) -> Blame {
        self.kind().blame()
    }

    /// A stable code for clients, metrics and stored error records.
    pub fn code(&self) -> &'static str {
        self.kind().code()
    }

    /// Whether the same inputs give the same error again; see [`ErrorKind::is_deterministic`].
    pub fn is_deterministic(&self) -> bool {
        self.kind().is_deterministic()
    }

    /// What the guest logged before the error.
    pub fn logs(&self) -> &Logs {
        &self.0.logs
    }

    /// What the guest used before the error.
    pub fn usage(&self) -> &Usage {
        &self.0.usage
    }

    /// Names of the functions on the guest's stack, innermost first; empty where there was no trap.
    pub fn backtrace(&self) -> &[String] {
        match self.kind() {
            ErrorKind::Trap { backtrace, .. } => backtrace,
            _ => &[],
        }
    }

    /// The parts, to keep them.
    pub fn into_parts(self) -> (ErrorKind, Logs, Usage) {
        (self.0.kind, self.0.logs, self.0.usage)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::traced(kind, Logs::default(), Usage::default())
    }
}

impl From<UploadError> for Error {
    fn from(error: UploadError) -> Self {
        ErrorKind::Upload(error).into()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.kind(), f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("kind", self.kind()).field("usage", self.usage()).finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.kind())
    }
}

/// For `map_err`: an I/O error with what was being done.
pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| ErrorKind::Io { what, source }.into()
}
