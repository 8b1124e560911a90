//! Guest calls: off the I/O threads, under permits, rows answered from cache or store.

use std::sync::Arc;

use super::Handle;
use super::cache::{ROWS_MAX, Shard};
use super::runner::Run;
use crate::broker::ClaimedMessage;
use crate::db;
use crate::db::state::{ShardQuery, ShardRow};
use crate::fold::{self, Context, Entry, Finished, Message, Module, Progress, Reads, Suspended};
use crate::types::id::Pid;

/// Rows that one answer to a fold holds at most (`wasm-notes.md` section 11).
const ANSWER_ROWS_MAX: i64 = 10_000;

/// Why a call gave no outcome.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The guest, or the engine.
    #[error(transparent)]
    Fold(#[from] fold::Error),
    /// The store could not give the rows.
    #[error("state could not be read")]
    Store(#[from] db::Error),
    /// The shard changed between two reads of one call.
    #[error("the shard changed since it was read")]
    Changed,
    /// The fold asked for more rows than an answer may hold.
    #[error("the fold asked for more than {ANSWER_ROWS_MAX} rows of one shard")]
    TooManyRows,
}

/// What a call is given.
pub(super) enum Input {
    /// The first messages of a batch.
    Batch(Arc<Vec<ClaimedMessage>>, usize),
    /// Rows that are due.
    Flush(Vec<(String, String)>),
}

fn entries(rows: &[(String, String)]) -> Vec<Entry<'_>> {
    rows.iter().map(|(key, value)| Entry { key, value }).collect()
}

/// Starts a call, and answers what it asks as long as the cache can.
fn begin(module: &Module, ctx: &Context, input: &Input, shard: &Shard) -> fold::Result<Step> {
    let progress = match input {
        Input::Batch(messages, n) => {
            let ids: Vec<String> =
                messages.iter().take(*n).map(|m| m.frame.transaction_id()).collect();
            let batch: Vec<Message<'_>> = messages
                .iter()
                .zip(&ids)
                .map(|(m, transaction_id)| Message {
                    offset: m.offset.unsigned_abs(),
                    transaction_id,
                    created_at: m.created_at.as_millisecond(),
                    payload: &m.frame.payload,
                })
                .collect();
            module.start(ctx, &batch)?
        }
        Input::Flush(rows) => module.flush(ctx, &entries(rows))?,
    };
    advance(progress, shard)
}

enum Step {
    Done(Finished),
    Ask(Reads, Suspended),
}

fn advance(mut progress: Progress, shard: &Shard) -> fold::Result<Step> {
    loop {
        match progress {
            Progress::Done(finished) => return Ok(Step::Done(finished)),
            Progress::Need(reads, suspended) => match shard.answer(&reads) {
                Some(rows) => progress = suspended.resume(&entries(&rows))?,
                None => return Ok(Step::Ask(reads, suspended)),
            },
        }
    }
}

impl Handle {
    /// Runs one call to its outcome.
    pub(super) async fn call(
        &self,
        run: &Arc<Run>,
        pid: Pid,
        shard: &Arc<Shard>,
        ctx: Context,
        input: Input,
    ) -> Result<Finished, CallError> {
        let (module, known) = (Arc::clone(&run.module), Arc::clone(shard));
        let mut step = self.blocking(move || begin(&module, &ctx, &input, &known)).await?;
        loop {
            match step {
                Step::Done(finished) => return Ok(finished),
                Step::Ask(reads, suspended) => {
                    let rows = self.rows(run, pid, shard.version, &reads).await?;
                    let known = Arc::clone(shard);
                    step = self
                        .blocking(move || advance(suspended.resume(&entries(&rows))?, &known))
                        .await?;
                }
            }
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> fold::Result<T> + Send + 'static,
    ) -> Result<T, CallError> {
        let permit = self.shared.permits.acquire().await.expect("the semaphore is never closed");
        let done = tokio::task::spawn_blocking(work).await;
        drop(permit);
        match done {
            Ok(result) => Ok(result?),
            Err(cause) => std::panic::resume_unwind(cause.into_panic()),
        }
    }

    /// Reads rows that the cache does not hold, at the version that the call began with.
    async fn rows(
        &self,
        run: &Run,
        pid: Pid,
        version: i64,
        reads: &Reads,
    ) -> Result<Vec<(String, String)>, CallError> {
        let which =
            ShardQuery::Some { keys: &reads.keys, prefixes: &reads.prefixes, due: reads.due };
        let most = ANSWER_ROWS_MAX + 2;
        let read = self.shared.broker.db().shard_read(pid, run.row.query.no, which, most).await?;
        if read.version != version {
            return Err(CallError::Changed);
        }
        let rows: Vec<(String, String)> = read
            .rows
            .into_iter()
            .filter(|(key, _)| key != super::cache::WATERMARK)
            .map(|(key, row)| (key, row.value))
            .collect();
        if i64::try_from(rows.len()).is_ok_and(|n| n > ANSWER_ROWS_MAX) {
            return Err(CallError::TooManyRows);
        }
        Ok(rows)
    }

    /// The shard as cached, else as stored.
    pub(super) async fn shard(&self, run: &Run, pid: Pid) -> Result<Shard, db::Error> {
        if let Some(kept) = run.shards.take(pid) {
            return Ok(kept);
        }
        let most = i64::try_from(ROWS_MAX + 1).expect("small");
        let read = self
            .shared
            .broker
            .db()
            .shard_read(pid, run.row.query.no, ShardQuery::Whole, most)
            .await?;
        let whole = read.rows.len() <= ROWS_MAX;
        let rows: Vec<(String, ShardRow)> = read.rows;
        Ok(Shard {
            version: read.version,
            watermark_ms: read.watermark_ms,
            rows: whole.then(|| rows.into_iter().collect()),
        })
    }
}
