//! Tests of the whole layer, with guests written by hand for the canonical ABI.

mod cache;
mod calls;
mod guest;
mod hostile;
mod outcome;
mod upload;

use std::sync::Arc;

use tempfile::TempDir;

use self::guest::Guest;
use super::{
    Compiler, Config, Context, Engine, Entry, Error, ErrorKind, Finished, Limits, Message, Module,
    ModuleHash, Progress, Result, Suspended,
};

/// An engine with a cache directory of its own.
struct Lab {
    engine: Engine,
    dir: TempDir,
}

impl Lab {
    fn new() -> Self {
        Self::with(Compiler::InProcess, Self::limits())
    }

    /// The defaults, with a deadline short enough to wait for.
    fn limits() -> Limits {
        Limits { deadline_ms: 150, slot_wait_ms: 50, ..Limits::default() }
    }

    fn with(compiler: Compiler, limits: Limits) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = engine_in(&dir, compiler, limits);
        Self { engine, dir }
    }

    fn load(&self, wasm: &[u8]) -> Result<Arc<Module>> {
        let bytes = wasm.to_vec();
        let source = || async { Ok::<_, std::convert::Infallible>(bytes) };
        block_on(self.engine.load(ModuleHash::of(wasm), source))
    }

    fn module(&self, guest: &Guest) -> Arc<Module> {
        self.load(&guest.wasm()).expect("the guest loads")
    }

    /// The error of a guest's start, with a batch of two messages.
    fn start_error(&self, guest: &Guest) -> Error {
        self.module(guest).start(&context(), &batch()).expect_err("the guest fails")
    }
}

fn engine_in(dir: &TempDir, compiler: Compiler, limits: Limits) -> Engine {
    let cache_dir = dir.path().join("cache");
    Engine::new(Config { cache_dir, compiler, limits, calls_at_once: 1 }).expect("an engine")
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

fn context() -> Context {
    Context {
        query: "q".to_owned(),
        partition: "p".to_owned(),
        partition_id: "00000000-0000-7000-8000-000000000001".to_owned(),
        params: String::new(),
        now: 1_000,
        watermark: Some(500),
    }
}

fn batch() -> [Message<'static>; 2] {
    let message =
        |offset, payload| Message { offset, transaction_id: "t", created_at: 1_000, payload };
    [message(7, r#"{"a":1}"#), message(8, r#"{"a":2}"#)]
}

fn done(progress: Progress) -> Finished {
    match progress {
        Progress::Done(finished) => finished,
        Progress::Need(reads, _) => panic!("the guest asked for {reads:?}"),
    }
}

fn need(progress: Progress) -> (super::Reads, Suspended) {
    match progress {
        Progress::Need(reads, suspended) => (reads, suspended),
        Progress::Done(finished) => panic!("the guest is done: {finished:?}"),
    }
}
