//! Write folds for FoldMQ: logic in Rust, compiled to WebAssembly, unit-tested natively.
//!
//! A fold is a function of a batch of messages and some state rows; the broker runs it and commits
//! what it gives. [`stream()`] builds one from operators, [`export_fold!`] makes it the module's
//! export, and [`testing::TestHost`] runs it in a plain `cargo test`.
//!
//! ```
//! use foldmq_guest::prelude::*;
//!
//! #[derive(Deserialize)]
//! struct Order { customer: String, amount: f64, at: Timestamp }
//!
//! fn per_minute() -> impl Fold {
//!     stream::<Order>()
//!         .key_by(|order| order.customer.clone())
//!         .tumbling(mins(1))
//!         .event_time(|order| order.at)
//!         .aggregate(|a| a.count("orders").sum("amount", |order| order.amount))
//!         .sink("orders.per_minute")
//! }
//! foldmq_guest::export_fold!(per_minute);
//! ```
//!
//! Two layers: [`Fold`] is the interface of `wit/fold.wit` in plain types; the operators are an
//! implementation of it, with state rows spelled as every other FoldMQ worker spells them. Nothing
//! here panics on what a message or a state row holds: an unreadable message is a dead letter, an
//! unreadable state row halts the query with its key in the text.

mod aggregate;
mod annotate;
mod emits;
mod engine;
mod fold;
mod gate;
mod gated;
mod intake;
mod json;
mod limits;
pub mod log;
mod model;
mod origin;
mod panes;
mod passthrough;
mod pipeline;
mod reducer;
mod refuse;
mod session;
mod settings;
mod stream;
mod time;
mod timing;
mod window;
mod windowed;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod bindings;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod guest;
pub mod testing;

pub use crate::aggregate::{Aggregate, Number, Totals};
pub use crate::emits::Emits;
pub use crate::fold::{Build, Fold};
pub use crate::gate::At;
pub use crate::intake::Meta;
pub use crate::json::{Document, Raw};
pub use crate::limits::{BucketState, LimitState, SlidingLimit, TokenBucket, Verdict};
pub use crate::model::{
    Ack, Clock, Context, Emit, Entry, Failure, Level, Manifest, Message, Op, Outcome, Reads,
    Reject, Step, Tally, Timers, Upsert,
};
pub use crate::origin::{Closed, Origin, Passed};
pub use crate::pipeline::Pipeline;
pub use crate::refuse::{IntoTime, OrSkip, Refuse};
pub use crate::stream::{Keyed, Stream, Unkeyed, stream};
pub use crate::time::{TimeError, Timestamp, hours, millis, mins, secs};
pub use crate::timing::Late;
pub use crate::window::Cron;
pub use crate::windowed::Windowed;

/// Keeps the examples of the readme compiling.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// What a fold's source file needs.
pub mod prelude {
    pub use serde::{Deserialize, Serialize};

    pub use crate::{
        At, Closed, Cron, Failure, Fold, Late, OrSkip, Passed, Raw, Refuse, SlidingLimit,
        Timestamp, TokenBucket, Verdict, hours, log, millis, mins, secs, stream,
    };
}

/// Makes a fold the module's export. Takes a function as in [`Build`]; use it once in a crate of
/// type `cdylib`. On native targets it checks the types and exports nothing.
///
/// Name and version of the manifest are those of the package unless the fold says otherwise.
#[macro_export]
macro_rules! export_fold {
    ($build:expr) => {
        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            fn check<A>(_: impl $crate::Build<A>) {}
            let _ = || check($build);
        };

        #[cfg(target_arch = "wasm32")]
        #[doc(hidden)]
        mod foldmq_guest_export {
            use super::*;

            struct Export;

            impl $crate::bindings::Guest for Export {
                fn describe(params: String) -> Result<$crate::bindings::Manifest, String> {
                    let package = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
                    $crate::guest::describe(&$build, &params, package)
                }

                fn start(
                    ctx: $crate::bindings::Context,
                    batch: Vec<$crate::bindings::Message>,
                ) -> Result<$crate::bindings::Step, $crate::bindings::Failure> {
                    $crate::guest::start(&$build, ctx, batch)
                }

                fn resume(
                    rows: Vec<$crate::bindings::Entry>,
                ) -> Result<$crate::bindings::Step, $crate::bindings::Failure> {
                    $crate::guest::resume(rows)
                }

                fn flush(
                    ctx: $crate::bindings::Context,
                    rows: Vec<$crate::bindings::Entry>,
                ) -> Result<$crate::bindings::Step, $crate::bindings::Failure> {
                    $crate::guest::flush(&$build, ctx, rows)
                }
            }

            $crate::bindings::export_world!(Export with_types_in $crate::bindings);
        }
    };
}
