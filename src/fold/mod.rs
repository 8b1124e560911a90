//! Runs the folds that users upload as WebAssembly modules, and trusts none of them.
//!
//! The layer turns uploaded bytes into a [`Module`] ([`Engine::check`], [`Engine::load`]) and a
//! batch of messages into a checked [`Outcome`] ([`Module::start`], [`Suspended::resume`],
//! [`Module::flush`]). It knows nothing of databases or HTTP: rows that a fold wants come back
//! through `resume`, bytes come from whoever calls `load`.
//!
//! Invariants:
//! - A call is a pure function of module, context, batch and rows: every batch has a fresh
//!   instance, no import but `log` exists, floats are canonical, limits end a call and are never
//!   visible inside it.
//! - A guest can end only its own call. Memory, tables, stack, time, results and logs are bounded,
//!   and so is the compile, which runs in a child process.
//! - Nothing that a guest returned leaves the layer unchecked.
//! - Compiled code is read only from files that this server wrote.
//!
//! Calls are blocking CPU work of up to [`Limits::deadline_ms`]: run them on blocking threads,
//! under permits. A guest needs [`Limits::stack_bytes`] of the calling thread's stack.

mod bindings;
mod cache;
mod compile;
mod disk;
mod engine;
mod error;
mod hash;
mod imports;
mod instance;
mod json;
mod limits;
mod outcome;
mod refusal;
mod run;
mod slots;
mod survey;
#[cfg(test)]
mod tests;
mod types;
mod upload;

pub use self::{
    compile::child_main,
    engine::{Compiler, Config, Engine},
    error::{Blame, Error, ErrorKind, Failure, Result, TrapKind},
    hash::{ModuleHash, ParseHashError},
    instance::{Module, Suspended},
    limits::Limits,
    outcome::Violation,
    refusal::UploadError,
    slots::Stats,
    types::{
        Ack, Clock, Context, Emit, Entry, Finished, Level, LogLine, Logs, Manifest, Message, Op,
        Outcome, Progress, Reads, Reject, Tally, Timers, Usage, WATERMARK_KEY,
    },
    upload::{Checked, Form, SUPPORTED_ABI},
};
