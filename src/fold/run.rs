//! One instance in one store: make it, call it, measure it, and explain what went wrong.
//!
//! A store that saw an error is never entered again, because a trap leaves the guest in the middle
//! of something.

use std::{sync::Arc, time::Instant};

use wasmtime::{PoolConcurrencyLimitError, Store, Trap, WasmBacktrace};

use super::{
    bindings::{Guest, Instance},
    error::{Blame, Error, ErrorKind, Failure, Result, TrapKind},
    limits::{Limiter, Limits, LogBook, cut, storable},
    slots::{Counters, Shared, Slot},
    types::{Logs, Usage},
};

/// Frames of a backtrace that are kept, and bytes of a function's name; both come from the guest.
const FRAMES_MAX: usize = 32;
const FUNCTION_NAME_BYTES: usize = 256;

/// What belongs to one store.
pub(super) struct Call {
    pub(super) logs: LogBook,
    pub(super) limiter: Limiter,
}

/// One instance in its store. Fields are dropped in this order: the slot is free only after its
/// instance is gone.
pub(super) struct Run {
    store: Store<Call>,
    instance: Instance,
    usage: Usage,
    slot: Slot,
    shared: Arc<Shared>,
}

impl Run {
    /// Makes an instance in a fresh store, which runs the guest's start functions under the
    /// deadline of a call.
    pub(super) fn new(guest: &Guest, shared: &Arc<Shared>) -> Result<Self> {
        let slot = Slot::take(shared)?;
        let limits = &shared.limits;
        let call = Call { logs: LogBook::new(limits), limiter: Limiter::new(limits) };
        let mut store = Store::new(&shared.wasm, call);
        store.limiter(|call| &mut call.limiter);
        store.set_hostcall_fuel(limits.result_bytes);
        store.set_epoch_deadline(shared.deadline_ticks());
        Counters::add(&shared.counters.instantiated);
        let mut usage = Usage::default();
        match Meter::measure(&mut usage, || guest.instantiate(&mut store)) {
            Ok(instance) => Ok(Self { store, instance, usage, slot, shared: Arc::clone(shared) }),
            Err(error) => {
                let unknown = |text| ErrorKind::Runtime(format!("instantiate: {text}"));
                let kind = explain(&error, store.data_mut(), &slot, limits, unknown);
                Err(trace(kind, store, usage, shared))
            }
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    pub(super) fn count_round(&mut self) {
        self.usage.rounds += 1;
    }

    /// Calls a function of the guest under a new deadline. After an error only [`Self::fail`] makes
    /// sense.
    pub(super) fn call<T>(
        &mut self,
        call: impl FnOnce(&Instance, &mut Store<Call>) -> wasmtime::Result<T>,
    ) -> Result<T, ErrorKind> {
        // The clock went on while rows were read.
        self.store.set_epoch_deadline(self.shared.deadline_ticks());
        let (instance, store) = (&self.instance, &mut self.store);
        Meter::measure(&mut self.usage, || call(instance, store)).map_err(|error| {
            // What is no trap by now is a value that could not be read out of the guest.
            let unknown = ErrorKind::BadResult;
            explain(&error, self.store.data_mut(), &self.slot, &self.shared.limits, unknown)
        })
    }

    /// A text of the guest in a size and form that can be kept.
    pub(super) fn text(&self, text: &str) -> String {
        storable(cut(text, self.limits().text_bytes))
    }

    /// Ends with an error.
    pub(super) fn fail(self, kind: ErrorKind) -> Error {
        let Self { store, usage, shared, slot, .. } = self;
        let error = trace(kind, store, usage, &shared);
        drop(slot);
        error
    }

    /// Ends with a failure that the guest returned.
    pub(super) fn give_up(self, failure: Failure, text: &str) -> Error {
        let text = self.text(text);
        self.fail(ErrorKind::Failure { failure, text })
    }

    /// Ends well.
    pub(super) fn end(self) -> (Logs, Usage) {
        let Self { store, usage, slot, .. } = self;
        let trace = take_trace(store, usage);
        drop(slot);
        trace
    }
}

/// Drops the instance and keeps what it left.
fn take_trace(store: Store<Call>, usage: Usage) -> (Logs, Usage) {
    let Call { logs, limiter } = store.into_data();
    let peak_memory_bytes = limiter.peak_memory_bytes() as u64;
    (logs.into_logs(), Usage { peak_memory_bytes, ..usage })
}

fn trace(kind: ErrorKind, store: Store<Call>, usage: Usage, shared: &Shared) -> Error {
    let counters = &shared.counters;
    if kind.blame() == Blame::Guest {
        Counters::add(&counters.guest_errors);
    }
    match kind {
        ErrorKind::Trap { .. } => Counters::add(&counters.traps),
        ErrorKind::Deadline { .. } => Counters::add(&counters.deadlines),
        _ => {}
    }
    let (logs, usage) = take_trace(store, usage);
    Error::traced(kind, logs, usage)
}

/// What an error of the runtime means. `unknown` is for the errors that nothing here knows.
fn explain(
    error: &wasmtime::Error,
    call: &mut Call,
    slot: &Slot,
    limits: &Limits,
    unknown: impl FnOnce(String) -> ErrorKind,
) -> ErrorKind {
    if let Some(stopped) = call.limiter.take_stopped() {
        return stopped;
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return slot.busy();
    }
    // The runtime keeps the type of this error to itself.
    if error.root_cause().to_string().contains("fuel allocated for hostcalls") {
        return ErrorKind::ResultTooLarge { limit: limits.result_bytes as u64 };
    }
    let text = |text: &str| storable(cut(text, limits.text_bytes));
    let Some(trap) = error.downcast_ref::<Trap>() else {
        return unknown(text(&root(error)));
    };
    let kind = match trap {
        Trap::Interrupt => {
            return ErrorKind::Deadline { limit_ms: limits.deadline_ms };
        }
        Trap::StringOutOfBounds
        | Trap::ListOutOfBounds
        | Trap::InvalidDiscriminant
        | Trap::InvalidChar
        | Trap::UnalignedPointer => return ErrorKind::BadResult(text(&trap.to_string())),
        Trap::UnreachableCodeReached => TrapKind::Unreachable,
        Trap::StackOverflow => TrapKind::StackOverflow,
        Trap::MemoryOutOfBounds | Trap::HeapMisaligned => TrapKind::MemoryOutOfBounds,
        Trap::TableOutOfBounds | Trap::IndirectCallToNull | Trap::BadSignature => {
            TrapKind::BadTableAccess
        }
        Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => {
            TrapKind::Arithmetic
        }
        _ => TrapKind::Other,
    };
    let message = call.logs.panic().map_or_else(|| trap.to_string(), str::to_owned);
    ErrorKind::Trap { kind, message: text(&message), backtrace: backtrace(error) }
}

/// The causes of an error in words, without the backtrace that the runtime puts on top.
fn root(error: &wasmtime::Error) -> String {
    let causes: Vec<_> = error.chain().map(ToString::to_string).collect();
    let told = causes.iter().filter(|cause| !cause.starts_with("error while executing"));
    told.map(|cause| cause.trim()).collect::<Vec<_>>().join(": ")
}

fn backtrace(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let name = |frame: &wasmtime::FrameInfo| match frame.func_name() {
        Some(name) => storable(cut(without_hash(name), FUNCTION_NAME_BYTES)),
        None => format!("function {}", frame.func_index()),
    };
    backtrace.frames().iter().take(FRAMES_MAX).map(name).collect()
}

/// A Rust function's name without the `::h0123456789abcdef` behind it, which changes with every
/// build.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            path
        }
        _ => name,
    }
}

/// Measures guest calls, on the thread that makes them.
struct Meter {
    wall: Instant,
    cpu_us: Option<u64>,
}

impl Meter {
    fn measure<T>(usage: &mut Usage, work: impl FnOnce() -> T) -> T {
        let start = Self { wall: Instant::now(), cpu_us: thread_cpu_us() };
        let result = work();
        let wall_us = u64::try_from(start.wall.elapsed().as_micros()).unwrap_or(u64::MAX);
        let cpu_us = start.cpu_us.zip(thread_cpu_us()).map(|(before, now)| now - before);
        usage.wall_us += wall_us;
        usage.cpu_us += cpu_us.unwrap_or(wall_us);
        result
    }
}

/// CPU time of this thread in microseconds, where the system can tell.
#[cfg(target_os = "linux")]
fn thread_cpu_us() -> Option<u64> {
    use nix::time::{ClockId, clock_gettime};
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok()?;
    u64::try_from(used.tv_sec() * 1_000_000 + used.tv_nsec() / 1_000).ok()
}

#[cfg(not(target_os = "linux"))]
fn thread_cpu_us() -> Option<u64> {
    None
}
