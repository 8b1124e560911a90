//! What the modules of one engine share: the runtime, the limits, the counters, and the right to
//! an instance.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;
use wasmtime::component::Linker;

use super::{
    engine::{SLOTS_SETTING, TICK_MS},
    error::{Error, ErrorKind, Result},
    limits::Limits,
    run::Call,
};

/// What modules share, and keep alive.
pub(super) struct Shared {
    pub(super) wasm: wasmtime::Engine,
    pub(super) linker: Linker<Call>,
    pub(super) limits: Limits,
    pub(super) slots: Slots,
    pub(super) counters: Counters,
}

impl Shared {
    /// The state, apart from what the cache knows.
    pub(super) fn stats(&self) -> Stats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Stats {
            instances: self.slots.taken() as u64,
            slots: self.slots.total as u64,
            instantiated: count(&counters.instantiated),
            waited: count(&counters.waited),
            guest_errors: count(&counters.guest_errors),
            traps: count(&counters.traps),
            deadlines: count(&counters.deadlines),
            compiles: count(&counters.compiles),
            compiles_failed: count(&counters.compiles_failed),
            disk_hits: count(&counters.disk_hits),
            modules_in_memory: 0,
        }
    }

    /// Ticks of a deadline; one more, since the current tick has begun already.
    pub(super) fn deadline_ticks(&self) -> u64 {
        self.limits.deadline_ms.div_ceil(TICK_MS).saturating_add(1)
    }
}

/// The state of an engine, for status and metrics. Counts are since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Instances alive now.
    pub instances: u64,
    /// Instances that may be alive at once.
    pub slots: u64,
    /// Instances made.
    pub instantiated: u64,
    /// Calls that had to wait for a free instance.
    pub waited: u64,
    /// Calls that failed by the guest's fault, deadlines included.
    pub guest_errors: u64,
    /// Calls that trapped.
    pub traps: u64,
    /// Calls that ran over their deadline.
    pub deadlines: u64,
    /// Modules compiled.
    pub compiles: u64,
    /// Modules that could not be compiled.
    pub compiles_failed: u64,
    /// Modules found compiled on disk.
    pub disk_hits: u64,
    /// Compiled modules kept in memory now.
    pub modules_in_memory: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) instantiated: AtomicU64,
    pub(super) waited: AtomicU64,
    pub(super) guest_errors: AtomicU64,
    pub(super) traps: AtomicU64,
    pub(super) deadlines: AtomicU64,
    pub(super) compiles: AtomicU64,
    pub(super) compiles_failed: AtomicU64,
    pub(super) disk_hits: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts the instances, so that a call waits for a free one instead of failing on an exhausted
/// pool.
#[derive(Debug)]
pub(super) struct Slots {
    total: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

impl Slots {
    pub(super) fn new(total: usize) -> Self {
        Self { total, free: Mutex::new(total), freed: Condvar::new() }
    }

    fn taken(&self) -> usize {
        self.total - *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> Error {
        ErrorKind::Busy { slots: self.total, setting: SLOTS_SETTING }.into()
    }
}

/// The right to one instance. Drop it after the store.
pub(super) struct Slot(Arc<Shared>);

impl Slot {
    /// Waits for a free instance, for a bounded time.
    pub(super) fn take(shared: &Arc<Shared>) -> Result<Self> {
        let slots = &shared.slots;
        let mut free = slots.lock();
        if *free == 0 {
            Counters::add(&shared.counters.waited);
            let patience = Duration::from_millis(shared.limits.slot_wait_ms);
            (free, _) = slots
                .freed
                .wait_timeout_while(free, patience, |free| *free == 0)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if *free == 0 {
            return Err(slots.busy());
        }
        *free -= 1;
        Ok(Self(Arc::clone(shared)))
    }

    /// The error for a pool that is exhausted although this slot was free.
    pub(super) fn busy(&self) -> ErrorKind {
        ErrorKind::Busy { slots: self.0.slots.total, setting: SLOTS_SETTING }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.slots.lock() += 1;
        self.0.slots.freed.notify_one();
    }
}
