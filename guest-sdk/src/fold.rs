//! The low layer: the trait that every fold implements, and how a host makes one from its params.

use serde::de::DeserializeOwned;

use crate::model::{Context, Entry, Failure, Manifest, Message, Outcome, Step};

/// A fold in terms of batches, rows and outcomes.
///
/// The broker makes a fresh value for every batch, so nothing outlives a call but state rows; what
/// start keeps in `self` is there in the resume that follows. A fold must be a pure function of its
/// inputs: no clock, no randomness, no iteration over a `HashMap`. Most folds are built from
/// operators ([`crate::stream()`]) and never implement this.
///
/// ```
/// use foldmq_guest::{Context, Emit, Failure, Fold, Manifest, Message, Outcome, Step};
///
/// struct Copy;
/// impl Fold for Copy {
///     fn describe(&self, _params: &str) -> Result<Manifest, String> {
///         Ok(Manifest { sinks: vec!["copies".into()], ..Manifest::default() })
///     }
///     fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Step, Failure> {
///         let copy = |m: Message| Emit {
///             queue: "copies".into(), partition: ctx.partition.clone(), payload: m.payload,
///             transaction_id: None,
///         };
///         let emits = batch.into_iter().map(copy).collect();
///         Ok(Step::Done(Outcome { emits, ..Outcome::default() }))
///     }
/// }
/// ```
pub trait Fold {
    /// Checks the params and tells what the fold wants.
    ///
    /// # Errors
    /// A text for the person who registers the query.
    fn describe(&self, params: &str) -> Result<Manifest, String>;

    /// A batch of one partition, in offset order.
    ///
    /// # Errors
    /// Nothing is committed; see [`Failure`].
    fn start(&mut self, ctx: Context, batch: Vec<Message>) -> Result<Step, Failure>;

    /// The rows that exist among those asked for, ordered by key.
    ///
    /// # Errors
    /// Nothing is committed; see [`Failure`].
    fn resume(&mut self, rows: Vec<Entry>) -> Result<Step, Failure> {
        drop(rows);
        Err(Failure::Halt("resume came, but this fold asks for no rows".into()))
    }

    /// Rows that are due. No message is involved and nothing is acked.
    ///
    /// # Errors
    /// Nothing is committed; see [`Failure`].
    fn flush(&mut self, ctx: Context, rows: Vec<Entry>) -> Result<Step, Failure> {
        drop((ctx, rows));
        Ok(Step::Done(Outcome::default()))
    }
}

/// A function that makes a fold: `fn() -> impl Fold`, or `fn(P) -> Result<impl Fold, String>` for
/// a fold with params, where `P` is read from the params document (an absent one reads as `{}`).
///
/// ```
/// use foldmq_guest::prelude::*;
/// use foldmq_guest::testing::TestHost;
///
/// #[derive(Deserialize)]
/// struct Params { limit: i64 }
/// fn big(p: Params) -> Result<impl Fold, String> {
///     if p.limit < 0 { return Err("limit must not be negative".into()); }
///     Ok(stream::<i64>().filter(move |v| *v > p.limit).sink("big"))
/// }
/// assert!(TestHost::with_params(big, r#"{"limit": 3}"#).is_ok());
/// assert!(TestHost::with_params(big, r#"{"limit": -3}"#).is_err());
/// ```
pub trait Build<Args> {
    /// Checks the params and tells what the fold wants.
    ///
    /// # Errors
    /// A text for the person who registers the query.
    fn describe(&self, params: &str) -> Result<Manifest, String>;

    /// Makes the fold for one batch.
    ///
    /// # Errors
    /// [`Failure::Halt`] where the params are refused.
    fn build(&self, params: &str) -> Result<Box<dyn Fold>, Failure>;
}

impl<B, F> Build<()> for B
where
    B: Fn() -> F,
    F: Fold + 'static,
{
    fn describe(&self, params: &str) -> Result<Manifest, String> {
        self().describe(params)
    }

    fn build(&self, _params: &str) -> Result<Box<dyn Fold>, Failure> {
        Ok(Box::new(self()))
    }
}

impl<B, P, F> Build<(P,)> for B
where
    B: Fn(P) -> Result<F, String>,
    P: DeserializeOwned,
    F: Fold + 'static,
{
    fn describe(&self, params: &str) -> Result<Manifest, String> {
        self(read_params(params)?)?.describe("")
    }

    fn build(&self, params: &str) -> Result<Box<dyn Fold>, Failure> {
        let fold = read_params(params).and_then(self).map_err(Failure::Halt)?;
        Ok(Box::new(fold))
    }
}

fn read_params<P: DeserializeOwned>(params: &str) -> Result<P, String> {
    let text = if params.is_empty() { "{}" } else { params };
    serde_json::from_str(text).map_err(|e| format!("params: {e}"))
}
