//! Compiled modules by hash: the recent ones in memory, all of them on [disk](super::disk), and the
//! loads that are under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::{
    disk::{Disk, Place},
    error::{Error, ErrorKind},
    hash::ModuleHash,
    instance::Module,
    limits::Limits,
    refusal::UploadError,
};

/// Modules in memory and on disk.
pub(super) struct Cache {
    disk: Disk,
    modules_max: usize,
    memory: Mutex<Memory>,
    flights: Mutex<HashMap<ModuleHash, Load>>,
}

#[derive(Default)]
struct Memory {
    modules: HashMap<ModuleHash, (Arc<Module>, u64)>,
    /// Grows with every use; the module with the smallest stamp goes first.
    now: u64,
}

impl Cache {
    pub(super) fn new(disk: Disk, limits: &Limits) -> Self {
        Self {
            disk,
            modules_max: limits.modules_in_memory.max(1),
            memory: Mutex::default(),
            flights: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.memory().modules.len()
    }

    pub(super) fn get(&self, hash: &ModuleHash) -> Option<Arc<Module>> {
        let memory = &mut *self.memory();
        memory.now += 1;
        let (module, stamp) = memory.modules.get_mut(hash)?;
        *stamp = memory.now;
        Some(Arc::clone(module))
    }

    /// Keeps a module in memory; the longest unused goes where there are too many.
    pub(super) fn keep(&self, module: Arc<Module>) -> Arc<Module> {
        let memory = &mut *self.memory();
        memory.now += 1;
        memory.modules.insert(module.hash(), (Arc::clone(&module), memory.now));
        while memory.modules.len() > self.modules_max {
            let oldest = memory.modules.iter().min_by_key(|(_, (_, stamp))| *stamp);
            let Some(oldest) = oldest.map(|(hash, _)| *hash) else {
                break;
            };
            memory.modules.remove(&oldest);
        }
        module
    }

    /// Where the module lies on disk.
    pub(super) fn place(&self, hash: ModuleHash) -> Place {
        self.disk.place(hash)
    }

    /// The one load of a module that is under way, to join or to lead.
    pub(super) fn flight(&self, hash: ModuleHash) -> Flight<'_> {
        let load = Arc::clone(self.flights().entry(hash).or_default());
        Flight { cache: self, hash, load }
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<ModuleHash, Load>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Load = Arc<AsyncMutex<Option<Refusal>>>;

/// A load of one module that several callers share.
///
/// Whoever holds the lock does the work; the others wait and find the module in memory, or the
/// refusal in the lock. If the leader is cancelled, the next one takes over.
pub(super) struct Flight<'a> {
    cache: &'a Cache,
    hash: ModuleHash,
    load: Load,
}

impl Flight<'_> {
    pub(super) async fn join(&self) -> AsyncMutexGuard<'_, Option<Refusal>> {
        self.load.lock().await
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flights = self.cache.flights();
        // This one and the map's: nobody else waits, and nobody can join while the map is locked.
        if Arc::strong_count(&self.load) == 2 {
            flights.remove(&self.hash);
        }
    }
}

/// The outcome of a load that would be the same for everyone who waits for it.
#[derive(Debug, Clone)]
pub(super) enum Refusal {
    Upload(UploadError),
    Compile(String),
}

impl Refusal {
    pub(super) fn of(error: &Error) -> Option<Self> {
        match error.kind() {
            ErrorKind::Upload(error) => Some(Self::Upload(error.clone())),
            ErrorKind::Compile(text) => Some(Self::Compile(text.clone())),
            _ => None,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Upload(error) => error.into(),
            Refusal::Compile(text) => ErrorKind::Compile(text).into(),
        }
    }
}
