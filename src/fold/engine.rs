//! The runtime's settings, its clock, and the front door of the layer.
//!
//! One engine serves the whole process. It owns the pool of instances, the ticker that deadlines
//! are measured by, and the compiled modules; it ends its ticker when the last user of it is gone.

use std::{path::PathBuf, sync::Arc, thread, time::Duration};

use wasmtime::{Config as WasmConfig, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::{
    bindings,
    cache::{Cache, Refusal},
    compile,
    disk::Disk,
    error::{Error, ErrorKind, Result, io},
    hash::ModuleHash,
    instance::Module,
    limits::Limits,
    refusal::UploadError,
    slots::{Counters, Shared, Slots, Stats},
    upload::{self, Checked},
};

/// How often the clock of deadlines moves.
pub(super) const TICK_MS: u64 = 10;
/// The setting that bounds instances, as error texts name it.
pub(super) const SLOTS_SETTING: &str = "calls_at_once";

/// Settings of the layer.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of compiled modules. Made if missing; only this server may write to it, because
    /// its files are executed.
    pub cache_dir: PathBuf,
    /// Where modules are compiled.
    pub compiler: Compiler,
    /// Every bound.
    pub limits: Limits,
    /// Guest calls that the caller runs at once; instances are reserved for
    /// [`Limits::slots_per_call`] times as many.
    ///
    /// Each instance reserves 4 GiB of address space (not of memory).
    pub calls_at_once: usize,
}

/// Where modules are compiled.
#[derive(Debug, Clone)]
pub enum Compiler {
    /// In a child process with limits: `program args.. INPUT OUTPUT LIMITS..`, which must end in
    /// [`child_main`](super::child_main).
    Child {
        /// The executable.
        program: PathBuf,
        /// What stands before the arguments of `child_main`.
        args: Vec<String>,
    },
    /// In this process, without limits on time and memory: for tools and tests that trust their
    /// modules.
    InProcess,
}

/// Checks, compiles and keeps modules. A clone is another handle of the same engine.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    cache: Cache,
    compiler: compile::Runner,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Reserves the instances and starts the clock.
    ///
    /// Fails if the address space of the instances can't be reserved or the cache directory can't
    /// be made.
    pub fn new(config: Config) -> Result<Self> {
        let Config { cache_dir, compiler, limits, calls_at_once } = config;
        let slots = calls_at_once.max(1).saturating_mul(limits.slots_per_call.max(1));
        let wasm = pooled(&limits, slots)?;
        let linker = bindings::linker(&wasm).map_err(runtime)?;
        start_ticker(&wasm)?;
        let cache = Cache::new(Disk::new(cache_dir, &wasm, &limits)?, &limits);
        let compiler = compile::Runner::new(compiler, &limits);
        let slots = Slots::new(slots);
        let counters = Counters::default();
        let shared = Arc::new(Shared { wasm, linker, limits, slots, counters });
        Ok(Self(Arc::new(Inner { shared, cache, compiler })))
    }

    /// The bounds that this engine was made with.
    pub fn limits(&self) -> &Limits {
        &self.0.shared.limits
    }

    /// Refuses everything that can be refused without compiling.
    ///
    /// Takes some milliseconds of CPU for a module of usual size.
    pub fn check(&self, bytes: &[u8]) -> Result<Checked, UploadError> {
        upload::check(bytes, self.limits())
    }

    /// The module, if it is in memory. No I/O.
    pub fn cached(&self, hash: &ModuleHash) -> Option<Arc<Module>> {
        self.0.cache.get(hash)
    }

    /// The module, from memory, from disk, or compiled from the bytes that `source` gives.
    ///
    /// `source` is asked only if the module is neither in memory nor on disk; the bytes must be
    /// those of the hash. Callers that want one module at the same time share the work and its
    /// result; compiles run one at a time.
    pub async fn load<F, Fut, E>(&self, hash: ModuleHash, source: F) -> Result<Arc<Module>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Vec<u8>, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(module) = self.cached(&hash) {
            return Ok(module);
        }
        let flight = self.0.cache.flight(hash);
        let mut landed = flight.join().await;
        if let Some(module) = self.cached(&hash) {
            return Ok(module);
        }
        if let Some(refusal) = &*landed {
            return Err(refusal.clone().into());
        }
        match self.load_alone(hash, source).await {
            Ok(module) => Ok(self.0.cache.keep(module)),
            Err(error) => {
                *landed = Refusal::of(&error);
                Err(error)
            }
        }
    }

    /// The state of the engine.
    pub fn stats(&self) -> Stats {
        let modules_in_memory = self.0.cache.len() as u64;
        Stats { modules_in_memory, ..self.0.shared.stats() }
    }

    async fn load_alone<F, Fut, E>(&self, hash: ModuleHash, source: F) -> Result<Arc<Module>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Vec<u8>, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let counters = &self.0.shared.counters;
        match self.open(hash).await {
            Ok(Some(module)) => {
                Counters::add(&counters.disk_hits);
                return Ok(module);
            }
            Ok(None) => {}
            // Code that was made under other settings: compile it again.
            Err(error) if matches!(error.kind(), ErrorKind::Compile(_)) => {
                tracing::warn!(%hash, %error, "compiled module on disk is not usable");
            }
            Err(error) => return Err(error),
        }
        let bytes = source().await.map_err(|error| ErrorKind::Source(error.into()))?;
        let limits = self.limits().clone();
        let component = blocking(move || {
            let found = ModuleHash::of(&bytes);
            if found != hash {
                return Err(ErrorKind::Corrupt { expected: hash, found }.into());
            }
            Ok(upload::check(&bytes, &limits)?.into_component())
        })
        .await?;
        let place = self.0.cache.place(hash);
        let compiled = self.0.compiler.compile(component, place.dir()).await;
        let counter = if compiled.is_ok() { &counters.compiles } else { &counters.compiles_failed };
        Counters::add(counter);
        let compiled = compiled?;
        blocking(move || place.store(compiled)).await?;
        self.open(hash).await?.ok_or_else(|| {
            ErrorKind::Runtime(format!("module {hash} vanished from the cache directory")).into()
        })
    }

    /// The module from disk, matched against the interface.
    async fn open(&self, hash: ModuleHash) -> Result<Option<Arc<Module>>> {
        let place = self.0.cache.place(hash);
        let shared = Arc::clone(&self.0.shared);
        blocking(move || {
            let Some(component) = place.open(&shared.wasm)? else {
                return Ok(None);
            };
            Module::new(hash, &component, shared).map(|module| Some(Arc::new(module)))
        })
        .await
    }
}

/// The settings that compiled code depends on, and that the compiling process shares with the
/// running one.
pub(super) fn settings(limits: &Limits) -> WasmConfig {
    let mut config = WasmConfig::new();
    config
        .epoch_interruption(true)
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .relaxed_simd_deterministic(true)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .max_wasm_stack(limits.stack_bytes);
    config
}

pub(super) fn pooled(limits: &Limits, slots: usize) -> Result<wasmtime::Engine> {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::default();
    // One memory an instance; the other bounds are for components of many core modules.
    pool.max_memory_size(limits.memory_bytes)
        .max_memories_per_module(1)
        .max_memories_per_component(1)
        .max_tables_per_module(count(limits.tables))
        .max_tables_per_component(count(limits.tables))
        .table_elements(limits.table_elements)
        .max_core_instances_per_component(count(limits.core_modules))
        .total_component_instances(count(slots))
        .total_core_instances(count(slots.saturating_mul(limits.core_modules)))
        .total_memories(count(slots))
        .total_tables(count(slots.saturating_mul(limits.tables)));
    let mut config = settings(limits);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    wasmtime::Engine::new(&config).map_err(|error| {
        let text = format!(
            "{slots} instances of 4 GiB address space each could not be reserved ({error:#}); \
             lower `{SLOTS_SETTING}` or raise the limit of address space (ulimit -v)"
        );
        ErrorKind::Runtime(text).into()
    })
}

fn start_ticker(engine: &wasmtime::Engine) -> Result<()> {
    let engine = engine.weak();
    let tick = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(Duration::from_millis(TICK_MS));
        }
    };
    let thread = thread::Builder::new().name("fold-ticker".to_owned()).spawn(tick);
    thread.map(drop).map_err(io("could not start the thread of deadlines"))
}

/// Runs CPU or file work off the request threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            Err(ErrorKind::Runtime(format!("a task of the fold layer ended: {error}")).into())
        }
    }
}

/// For `map_err`: a failure of the runtime that is no guest's fault.
pub(super) fn runtime(error: wasmtime::Error) -> Error {
    ErrorKind::Runtime(format!("{error:#}")).into()
}
