//! The host side of the interface, generated from `guest-sdk/wit/fold.wit`: one module a supported
//! version, each mapped to the plain types of [`super::types`].
//!
//! A new version of the interface is a new module here, a new variant of [`Guest`] and
//! [`Instance`], and a new entry of [`super::SUPPORTED_ABI`]. Nothing else of the layer names a
//! version.

use wasmtime::{
    Store,
    component::{Component, Linker},
};

use super::{
    run::Call,
    types::{Context, Entry, Manifest, Message, Op, Outcome, Reads},
};

/// What a guest answered to `start`, `resume` or `flush`.
#[derive(Debug)]
pub(super) enum Step {
    Need(Reads),
    Done(Outcome),
}

/// What a guest gave as the reason for not answering.
#[derive(Debug)]
pub(super) enum GuestFailure {
    Retry(String),
    Halt(String),
}

/// An answer of a guest, inside what the runtime has to say.
pub(super) type Answer<T, E> = wasmtime::Result<Result<T, E>>;

/// A compiled guest with its imports resolved, ready to be instantiated.
pub(super) enum Guest {
    V0_1_0(v0_1_0::Guest),
}

/// One instance of a guest, living in one store.
pub(super) enum Instance {
    V0_1_0(v0_1_0::Instance),
}

impl Guest {
    /// Matches a component against the interface. The error says which import or export doesn't
    /// fit.
    pub(super) fn new(linker: &Linker<Call>, component: &Component) -> wasmtime::Result<Self> {
        Ok(Self::V0_1_0(v0_1_0::Guest::new(linker, component)?))
    }

    /// Whether the guest exports `migrate`.
    pub(super) fn migrates(&self) -> bool {
        match self {
            Self::V0_1_0(guest) => guest.migrates(),
        }
    }

    /// Makes an instance. This runs code of the guest.
    pub(super) fn instantiate(&self, store: &mut Store<Call>) -> wasmtime::Result<Instance> {
        match self {
            Self::V0_1_0(guest) => Ok(Instance::V0_1_0(guest.instantiate(store)?)),
        }
    }
}

impl Instance {
    pub(super) fn describe(
        &self,
        store: &mut Store<Call>,
        params: &str,
    ) -> Answer<Manifest, String> {
        match self {
            Self::V0_1_0(instance) => instance.describe(store, params),
        }
    }

    pub(super) fn start(
        &self,
        store: &mut Store<Call>,
        ctx: &Context,
        batch: &[Message<'_>],
    ) -> Answer<Step, GuestFailure> {
        match self {
            Self::V0_1_0(instance) => instance.start(store, ctx, batch),
        }
    }

    pub(super) fn resume(
        &self,
        store: &mut Store<Call>,
        rows: &[Entry<'_>],
    ) -> Answer<Step, GuestFailure> {
        match self {
            Self::V0_1_0(instance) => instance.resume(store, rows),
        }
    }

    pub(super) fn flush(
        &self,
        store: &mut Store<Call>,
        ctx: &Context,
        rows: &[Entry<'_>],
    ) -> Answer<Step, GuestFailure> {
        match self {
            Self::V0_1_0(instance) => instance.flush(store, ctx, rows),
        }
    }

    /// Calls `migrate`; an error where the guest lacks it.
    pub(super) fn migrate(
        &self,
        store: &mut Store<Call>,
        old_module: &str,
        rows: &[Entry<'_>],
    ) -> Answer<Vec<Op>, String> {
        match self {
            Self::V0_1_0(instance) => instance.migrate(store, old_module, rows),
        }
    }
}

/// Everything that a guest may import, of every version.
pub(super) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<Call>> {
    let mut linker = Linker::new(engine);
    v0_1_0::add_to_linker(&mut linker)?;
    Ok(linker)
}

mod v0_1_0 {
    //! Version 0.1.0.

    use wasmtime::{
        Store,
        component::{Component, ComponentExportIndex, HasSelf, InstancePre, Linker},
    };

    use self::generated::foldmq::fold::types as wit;
    use super::{Answer, GuestFailure, Step};
    use crate::fold::{run::Call, types};

    mod generated {
        #![allow(
            missing_docs,
            unreachable_pub,
            unused_qualifications,
            reason = "the lints are for code that people write"
        )]

        // Parameters are borrowed: a batch is lowered straight from the caller's strings.
        wasmtime::component::bindgen!({
            path: "guest-sdk/wit",
            world: "foldmq:fold/fold",
            ownership: Borrowing { duplicate_if_necessary: true },
        });
    }

    pub(in crate::fold) struct Guest {
        pre: InstancePre<Call>,
        exports: generated::FoldIndices,
        migrate: Option<ComponentExportIndex>,
    }

    pub(in crate::fold) struct Instance {
        fold: generated::Fold,
        raw: wasmtime::component::Instance,
        migrate: Option<ComponentExportIndex>,
    }

    pub(super) fn add_to_linker(linker: &mut Linker<Call>) -> wasmtime::Result<()> {
        generated::Fold::add_to_linker::<_, HasSelf<_>>(linker, |call| call)
    }

    impl wit::Host for Call {}

    impl generated::FoldImports for Call {
        fn log(&mut self, level: wit::Level, text: String) {
            let level = match level {
                wit::Level::Debug => types::Level::Debug,
                wit::Level::Info => types::Level::Info,
                wit::Level::Warn => types::Level::Warn,
                wit::Level::Error => types::Level::Error,
            };
            self.logs.write(level, &text);
        }
    }

    impl Guest {
        pub(super) fn new(linker: &Linker<Call>, component: &Component) -> wasmtime::Result<Self> {
            let pre = linker.instantiate_pre(component)?;
            let exports = generated::FoldIndices::new(&pre)?;
            Ok(Self { pre, exports, migrate: component.get_export_index(None, "migrate") })
        }

        pub(super) fn migrates(&self) -> bool {
            self.migrate.is_some()
        }

        pub(super) fn instantiate(&self, store: &mut Store<Call>) -> wasmtime::Result<Instance> {
            let raw = self.pre.instantiate(&mut *store)?;
            let fold = self.exports.load(&mut *store, &raw)?;
            Ok(Instance { fold, raw, migrate: self.migrate })
        }
    }

    impl Instance {
        pub(super) fn describe(
            &self,
            store: &mut Store<Call>,
            params: &str,
        ) -> Answer<types::Manifest, String> {
            Ok(self.fold.call_describe(store, params)?.map(Into::into))
        }

        pub(super) fn start(
            &self,
            store: &mut Store<Call>,
            ctx: &types::Context,
            batch: &[types::Message<'_>],
        ) -> Answer<Step, GuestFailure> {
            let batch: Vec<_> = batch.iter().map(lower_message).collect();
            lift(self.fold.call_start(store, lower_context(ctx), &batch)?)
        }

        pub(super) fn resume(
            &self,
            store: &mut Store<Call>,
            rows: &[types::Entry<'_>],
        ) -> Answer<Step, GuestFailure> {
            lift(self.fold.call_resume(store, &lower_rows(rows))?)
        }

        pub(super) fn flush(
            &self,
            store: &mut Store<Call>,
            ctx: &types::Context,
            rows: &[types::Entry<'_>],
        ) -> Answer<Step, GuestFailure> {
            lift(self.fold.call_flush(store, lower_context(ctx), &lower_rows(rows))?)
        }

        pub(super) fn migrate(
            &self,
            store: &mut Store<Call>,
            old_module: &str,
            rows: &[types::Entry<'_>],
        ) -> Answer<Vec<types::Op>, String> {
            type Params<'a> = (&'a str, &'a [wit::Entry<'a>]);
            type Results = (Result<Vec<wit::Op>, String>,);
            let Some(index) = self.migrate else { wasmtime::bail!("no export `migrate`") };
            let migrate = self.raw.get_typed_func::<Params<'_>, Results>(&mut *store, index)?;
            let (answer,) = migrate.call(store, (old_module, &lower_rows(rows)))?;
            Ok(answer.map(|ops| ops.into_iter().map(Into::into).collect()))
        }
    }

    fn lower_message<'a>(message: &types::Message<'a>) -> wit::Message<'a> {
        wit::Message {
            offset: message.offset,
            transaction_id: message.transaction_id,
            created_at: message.created_at,
            payload: message.payload,
        }
    }

    fn lower_context(ctx: &types::Context) -> wit::Context<'_> {
        wit::Context {
            query: &ctx.query,
            partition: &ctx.partition,
            partition_id: &ctx.partition_id,
            params: &ctx.params,
            now: ctx.now,
            watermark: ctx.watermark,
        }
    }

    fn lower_rows<'a>(rows: &[types::Entry<'a>]) -> Vec<wit::Entry<'a>> {
        rows.iter().map(|row| wit::Entry { key: row.key, value: row.value }).collect()
    }

    fn lift(answer: Result<wit::Step, wit::Failure>) -> Answer<Step, GuestFailure> {
        Ok(match answer {
            Ok(wit::Step::Need(reads)) => Ok(Step::Need(reads.into())),
            Ok(wit::Step::Done(outcome)) => Ok(Step::Done(outcome.into())),
            Err(wit::Failure::Retry(text)) => Err(GuestFailure::Retry(text)),
            Err(wit::Failure::Halt(text)) => Err(GuestFailure::Halt(text)),
        })
    }

    impl From<wit::Reads> for types::Reads {
        fn from(reads: wit::Reads) -> Self {
            Self { keys: reads.keys, prefixes: reads.prefixes, due: reads.due }
        }
    }

    impl From<wit::Op> for types::Op {
        fn from(op: wit::Op) -> Self {
            match op {
                wit::Op::Upsert(wit::Upsert { key, value, due_at }) => {
                    Self::Upsert { key, value, due_at }
                }
                wit::Op::Delete(key) => Self::Delete { key },
            }
        }
    }

    impl From<wit::Outcome> for types::Outcome {
        fn from(outcome: wit::Outcome) -> Self {
            let emit = |emit: wit::Emit| types::Emit {
                queue: emit.queue,
                partition: emit.partition,
                payload: emit.payload,
                transaction_id: emit.transaction_id,
            };
            let reject =
                |reject: wit::Reject| types::Reject { index: reject.index, reason: reject.reason };
            let tally = |tally: wit::Tally| types::Tally { cause: tally.cause, count: tally.count };
            Self {
                ops: outcome.ops.into_iter().map(Into::into).collect(),
                emits: outcome.emits.into_iter().map(emit).collect(),
                rejects: outcome.rejects.into_iter().map(reject).collect(),
                tallies: outcome.tallies.into_iter().map(tally).collect(),
                ack: match outcome.ack {
                    wit::Ack::All => types::Ack::All,
                    wit::Ack::Prefix(wit::Prefix { count, retry_after_ms }) => {
                        types::Ack::Prefix { count, retry_after_ms }
                    }
                },
                watermark: outcome.watermark,
            }
        }
    }

    impl From<wit::Manifest> for types::Manifest {
        fn from(manifest: wit::Manifest) -> Self {
            Self {
                name: manifest.name,
                version: manifest.version,
                clock: match manifest.clock {
                    wit::Clock::Messages => types::Clock::Messages,
                    wit::Clock::Host => types::Clock::Host,
                },
                timers: match manifest.timers {
                    wit::Timers::Watermark => types::Timers::Watermark,
                    wit::Timers::Clock => types::Timers::Clock,
                },
                sinks: manifest.sinks,
                max_batch: manifest.max_batch,
                idle_ms: manifest.idle_ms,
            }
        }
    }
}
