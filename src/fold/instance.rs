//! What a module can be asked: to describe itself, to fold a batch, to flush rows, to take over
//! state.
//!
//! Every question has its own instance ([`super::run`]), which lives through the rounds of one fold
//! and is dropped with it, so that nothing is left of a batch for the next.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use wasmtime::component::Component;

use super::{
    bindings::{Guest, GuestFailure, Step},
    error::{ErrorKind, Failure, Result},
    hash::ModuleHash,
    limits::Limits,
    outcome::{Rules, check_ops},
    refusal::UploadError,
    run::Run,
    slots::Shared,
    types::{Context, Entry, Finished, Manifest, Message, Op, Progress},
};

/// How many descriptions a module remembers, one for each params document.
const MANIFESTS_MAX: usize = 64;

/// A compiled module, ready to run. Cheap calls, no I/O; safe to share between threads.
pub struct Module {
    hash: ModuleHash,
    guest: Guest,
    shared: Arc<Shared>,
    manifests: Mutex<BTreeMap<String, Arc<Manifest>>>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl Module {
    /// Matches compiled code against the interface.
    pub(super) fn new(
        hash: ModuleHash,
        component: &Component,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let guest = Guest::new(&shared.linker, component)
            .map_err(|error| UploadError::Mismatch { message: format!("{error:#}") })?;
        Ok(Self { hash, guest, shared, manifests: Mutex::default() })
    }

    /// The hash of the bytes that were uploaded.
    pub fn hash(&self) -> ModuleHash {
        self.hash
    }

    /// Whether the module can take over the state of an older one.
    pub fn migrates(&self) -> bool {
        self.guest.migrates()
    }

    /// The module's own description, for given params (`""` where there are none).
    ///
    /// Asks the guest once for each params document and remembers the answer, which is a function
    /// of the params alone. [`ErrorKind::Params`] if the guest refuses them.
    pub fn describe(&self, params: &str) -> Result<Arc<Manifest>> {
        let known =
            self.manifests.lock().unwrap_or_else(PoisonError::into_inner).get(params).cloned();
        if let Some(manifest) = known {
            return Ok(manifest);
        }
        let mut run = Run::new(&self.guest, &self.shared)?;
        let answer = run.call(|guest, store| guest.describe(store, params));
        let mut manifest = match answer {
            Ok(Ok(manifest)) => manifest,
            Ok(Err(text)) => {
                let text = run.text(&text);
                return Err(run.fail(ErrorKind::Params(text)));
            }
            Err(kind) => return Err(run.fail(kind)),
        };
        if let Err(violation) = manifest.check(&self.shared.limits) {
            return Err(run.fail(ErrorKind::BadOutcome(violation)));
        }
        let manifest = Arc::new(manifest);
        let mut known = self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MANIFESTS_MAX {
            known.pop_first();
        }
        known.insert(params.to_owned(), Arc::clone(&manifest));
        Ok(manifest)
    }

    /// Folds a batch of one partition, in offset order, on a fresh instance.
    pub fn start(&self, ctx: &Context, batch: &[Message<'_>]) -> Result<Progress> {
        self.check_batch(batch)?;
        let manifest = self.describe(&ctx.params)?;
        let mut run = Run::new(&self.guest, &self.shared)?;
        let answer = run.call(|guest, store| guest.start(store, ctx, batch));
        let task = Task { manifest, batch_len: batch.len(), watermark: ctx.watermark };
        Suspended { run, task }.step(answer)
    }

    /// Folds rows that are due, on a fresh instance. No message is involved.
    pub fn flush(&self, ctx: &Context, rows: &[Entry<'_>]) -> Result<Progress> {
        check_rows(rows.len(), &self.shared.limits)?;
        let manifest = self.describe(&ctx.params)?;
        let mut run = Run::new(&self.guest, &self.shared)?;
        let answer = run.call(|guest, store| guest.flush(store, ctx, rows));
        let task = Task { manifest, batch_len: 0, watermark: ctx.watermark };
        Suspended { run, task }.step(answer)
    }

    /// Asks for the changes that take over a page of an older module's state, on a fresh instance.
    ///
    /// [`UploadError::MissingExport`] where the module does not [migrate](Self::migrates).
    pub fn migrate(&self, old_module: &ModuleHash, rows: &[Entry<'_>]) -> Result<Vec<Op>> {
        if !self.migrates() {
            return Err(UploadError::MissingExport { name: "migrate".to_owned() }.into());
        }
        let old_module = old_module.to_string();
        let mut run = Run::new(&self.guest, &self.shared)?;
        let answer = run.call(|guest, store| guest.migrate(store, &old_module, rows));
        let ops = match answer {
            Ok(Ok(ops)) => ops,
            Ok(Err(text)) => {
                let text = run.text(&text);
                return Err(run.fail(ErrorKind::Failure { failure: Failure::Halt, text }));
            }
            Err(kind) => return Err(run.fail(kind)),
        };
        match check_ops("ops", &ops, &self.shared.limits) {
            Ok(()) => Ok(ops),
            Err(violation) => Err(run.fail(ErrorKind::BadOutcome(violation))),
        }
    }

    fn check_batch(&self, batch: &[Message<'_>]) -> Result<()> {
        let limits = &self.shared.limits;
        check_input("messages", batch.len(), limits.batch_messages)?;
        let bytes = batch.iter().map(|message| message.payload.len()).sum();
        if batch.len() > 1 {
            check_input("bytes of payload", bytes, limits.batch_bytes)?;
        }
        Ok(())
    }
}

/// A fold that waits for state rows. Holds its instance; may go on in another thread.
pub struct Suspended {
    run: Run,
    task: Task,
}

/// What the outcome of a fold is checked against.
struct Task {
    manifest: Arc<Manifest>,
    batch_len: usize,
    watermark: Option<i64>,
}

impl fmt::Debug for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspended").field("usage", &self.run.usage()).finish_non_exhaustive()
    }
}

impl Suspended {
    /// Goes on with the rows that exist among those asked for, in key order.
    pub fn resume(mut self, rows: &[Entry<'_>]) -> Result<Progress> {
        if let Err(error) = check_rows(rows.len(), self.run.limits()) {
            return Err(self.run.fail(error.into_parts().0));
        }
        let answer = self.run.call(|guest, store| guest.resume(store, rows));
        self.step(answer)
    }

    fn step(mut self, answer: Result<Result<Step, GuestFailure>, ErrorKind>) -> Result<Progress> {
        match answer {
            Err(kind) => Err(self.run.fail(kind)),
            Ok(Err(GuestFailure::Retry(text))) => Err(self.run.give_up(Failure::Retry, &text)),
            Ok(Err(GuestFailure::Halt(text))) => Err(self.run.give_up(Failure::Halt, &text)),
            Ok(Ok(Step::Need(mut reads))) => {
                let limits = self.run.limits();
                if self.run.usage().rounds >= limits.rounds {
                    let limit = limits.rounds;
                    return Err(self.run.fail(ErrorKind::TooManyRounds { limit }));
                }
                if let Err(violation) = reads.check(limits) {
                    return Err(self.run.fail(ErrorKind::BadOutcome(violation)));
                }
                self.run.count_round();
                Ok(Progress::Need(reads, self))
            }
            Ok(Ok(Step::Done(mut outcome))) => {
                let rules = Rules {
                    limits: self.run.limits(),
                    manifest: &self.task.manifest,
                    batch_len: self.task.batch_len,
                    watermark: self.task.watermark,
                };
                match outcome.check(&rules) {
                    Ok(()) => {
                        let (logs, usage) = self.run.end();
                        Ok(Progress::Done(Finished { outcome, logs, usage }))
                    }
                    Err(violation) => Err(self.run.fail(ErrorKind::BadOutcome(violation))),
                }
            }
        }
    }
}

fn check_rows(rows: usize, limits: &Limits) -> Result<()> {
    if rows <= limits.rows {
        return Ok(());
    }
    let [asked, limit] = [rows, limits.rows].map(|n| n as u64);
    Err(ErrorKind::TooManyRows { asked, limit }.into())
}

fn check_input(what: &'static str, asked: usize, limit: usize) -> Result<()> {
    if asked <= limit {
        return Ok(());
    }
    let [asked, limit] = [asked, limit].map(|n| n as u64);
    Err(ErrorKind::Input { what, asked, limit }.into())
}
