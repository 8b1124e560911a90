//! Cycles: the one commit path of outside workers and hosted folds.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::append::{Append, AppendColumns};
use super::claim::{Lane, lanes_of};
use super::queue::{NewPartition, NewQueue, Queue, insert_queue, partition_arrays};
use super::{Db, Error, Refusal};
use crate::types::cycle::{DeadLetter, Hosted, Settlement, Timers};
use crate::types::id::{PartitionId, Pid, QueryNo, QueueNo, TxnHash};

/// A row to write.
#[derive(Clone, Debug)]
pub struct Upsert {
    /// Key.
    pub key: String,
    /// JSON text, checked.
    pub value: String,
    /// The number at `value.windowEnd`.
    pub window_end: Option<f64>,
    /// When a hosted fold wants a flush, Unix ms.
    pub due_ms: Option<i64>,
}

/// A cycle with numbers instead of names, each key at most once.
#[derive(Clone, Debug)]
pub struct PackedCycle {
    /// Source partition.
    pub partition: PartitionId,
    /// Query.
    pub query: QueryNo,
    /// Group whose cursor moves.
    pub group: String,
    /// What happens to the cursor.
    pub settlement: Settlement,
    /// Rows to write.
    pub upserts: Vec<Upsert>,
    /// Keys to delete.
    pub deletes: Vec<String>,
    /// Segments to append.
    pub appends: Vec<Append>,
    /// Messages given up.
    pub dead_letters: Vec<DeadLetter>,
    /// Present for a hosted fold.
    pub hosted: Option<Hosted>,
}

impl PackedCycle {
    /// Lock order of shards.
    #[must_use]
    pub fn key(&self) -> (Pid, QueryNo) {
        (self.partition.pid(), self.query)
    }
}

/// What a committed cycle did.
#[derive(Clone, Debug)]
pub struct CycleRow {
    /// For each append: base offset and commit time.
    pub appended: Vec<(i64, Timestamp)>,
    /// Messages settled.
    pub count: Option<i64>,
    /// Whether the lease ended.
    pub released: Option<bool>,
    /// Version of the shard after the cycle.
    pub version: i64,
    /// Earliest due time of the shard, Unix ms.
    pub next_due_ms: Option<i64>,
    /// Queue of the source partition, where a cursor was involved.
    pub queue: Option<QueueNo>,
    /// Outcome of the claim of the next batch.
    pub next: Option<Lane>,
    /// Queues that were made in the same transaction.
    pub made_queues: Vec<Queue>,
}

#[derive(Default)]
struct Columns<'a> {
    pid: Vec<i64>,
    partition: Vec<Uuid>,
    query: Vec<i64>,
    version: Vec<Option<i64>>,
    group: Vec<&'a str>,
    ack: Vec<i16>,
    lease: Vec<Option<Uuid>>,
    count: Vec<i64>,
    skip: Vec<Option<Vec<u8>>>,
    upserts_n: Vec<i32>,
    deletes_n: Vec<i32>,
    pushes_n: Vec<i32>,
    deads_n: Vec<i32>,
    timers: Vec<i16>,
    idle_ms: Vec<i64>,
    watermark: Vec<Option<i64>>,
    backoff_ms: Vec<i64>,
    messages: Vec<i64>,
    tallies: Vec<Option<String>>,
    next_lease: Vec<Option<Uuid>>,
    next_batch: Vec<Option<i32>>,
    next_bytes: Vec<Option<i64>>,
    next_lease_ms: Vec<Option<i64>>,
    s_key: Vec<&'a str>,
    s_value: Vec<&'a str>,
    s_window_end: Vec<Option<f64>>,
    s_due: Vec<Option<i64>>,
    x_key: Vec<&'a str>,
    appends: AppendColumns<'a>,
    d_id: Vec<Uuid>,
    d_offset: Vec<i64>,
    d_message: Vec<Uuid>,
    d_txn: Vec<&'a str>,
    d_payload: Vec<&'a [u8]>,
    d_sub: Vec<Option<&'a str>>,
    d_trace: Vec<Option<Uuid>>,
    d_error: Vec<&'a str>,
    d_detail: Vec<Option<String>>,
    d_at: Vec<Timestamp>,
    d_retries: Vec<i32>,
}

fn len32(n: usize) -> i32 {
    i32::try_from(n).expect("a cycle's arrays are bounded by the request body")
}

impl<'a> Columns<'a> {
    fn push(&mut self, c: &'a PackedCycle) {
        let (ack, lease, count, skip) = match &c.settlement {
            Settlement::None => (0, None, 0, None),
            Settlement::Completed { lease, count } => (1, Some(*lease), *count, None),
            Settlement::Partial { lease, count, last_transaction_id, release } => (
                if *release { 4 } else { 2 },
                Some(*lease),
                *count,
                last_transaction_id.as_ref().map(|id| TxnHash::of(id).0.to_vec()),
            ),
            Settlement::Failed { lease, count } => (3, Some(*lease), *count, None),
        };
        self.pid.push(c.partition.pid().0);
        self.partition.push(c.partition.0);
        self.query.push(c.query.0);
        self.group.push(&c.group);
        self.ack.push(ack);
        self.lease.push(lease);
        self.count.push(count);
        self.skip.push(skip);
        self.upserts_n.push(len32(c.upserts.len()));
        self.deletes_n.push(len32(c.deletes.len()));
        self.pushes_n.push(len32(c.appends.len()));
        self.deads_n.push(len32(c.dead_letters.len()));
        let h = c.hosted.as_ref();
        self.version.push(h.map(|h| h.expected_version));
        self.timers.push(h.map_or(0, |h| if h.timers == Timers::Clock { 1 } else { 2 }));
        self.idle_ms.push(h.map_or(0, |h| h.idle_ms));
        self.watermark.push(h.and_then(|h| h.watermark_ms));
        self.backoff_ms.push(h.map_or(0, |h| h.backoff_ms));
        self.messages.push(h.map_or(count, |h| h.messages));
        self.tallies.push(
            h.filter(|h| !h.tallies.is_empty()).map(|h| {
                serde_json::to_string(&h.tallies).expect("a map of text to numbers is JSON")
            }),
        );
        let next = h.and_then(|h| h.next.as_ref());
        self.next_lease.push(next.map(|n| n.lease));
        self.next_batch.push(next.map(|n| n.batch));
        self.next_bytes.push(next.map(|n| n.bytes));
        self.next_lease_ms.push(next.map(|n| n.lease_ms));
        for u in &c.upserts {
            self.s_key.push(&u.key);
            self.s_value.push(&u.value);
            self.s_window_end.push(u.window_end);
            self.s_due.push(u.due_ms);
        }
        self.x_key.extend(c.deletes.iter().map(String::as_str));
        for append in &c.appends {
            self.appends.push(append);
        }
        for d in &c.dead_letters {
            self.d_id.push(Uuid::now_v7());
            self.d_offset.push(d.offset);
            self.d_message.push(d.message_id);
            self.d_txn.push(&d.transaction_id);
            self.d_payload.push(d.payload.as_bytes());
            self.d_sub.push(d.producer_sub.as_deref());
            self.d_trace.push(d.trace_id);
            self.d_error.push(&d.reason);
            self.d_detail.push(d.detail.as_ref().map(ToString::to_string));
            self.d_at.push(d.created_at);
            self.d_retries.push(d.retries);
        }
    }

    fn params(&self) -> [&(dyn ToSql + Sync); 48] {
        [
            &self.pid,
            &self.partition,
            &self.query,
            &self.version,
            &self.group,
            &self.ack,
            &self.lease,
            &self.count,
            &self.skip,
            &self.upserts_n,
            &self.deletes_n,
            &self.pushes_n,
            &self.deads_n,
            &self.timers,
            &self.idle_ms,
            &self.watermark,
            &self.backoff_ms,
            &self.messages,
            &self.tallies,
            &self.next_lease,
            &self.next_batch,
            &self.next_bytes,
            &self.next_lease_ms,
            &self.s_key,
            &self.s_value,
            &self.s_window_end,
            &self.s_due,
            &self.x_key,
            &self.appends.pid,
            &self.appends.n,
            &self.appends.raw,
            &self.appends.first_id,
            &self.appends.last_id,
            &self.appends.hashes,
            &self.appends.payload,
            &self.appends.known,
            &self.appends.window_ms,
            &self.d_id,
            &self.d_offset,
            &self.d_message,
            &self.d_txn,
            &self.d_payload,
            &self.d_sub,
            &self.d_trace,
            &self.d_error,
            &self.d_detail,
            &self.d_at,
            &self.d_retries,
        ]
    }
}

impl Db {
    /// Commits cycles together, or none of them.
    ///
    /// The caller sorts them by [`PackedCycle::key`] and gives no key twice.
    ///
    /// # Errors
    /// [`Error::Refused`] when one of them is refused: nothing is committed.
    /// [`Error::Unavailable`] and [`Error::Timeout`]: the outcome is unknown.
    pub async fn cycles(&self, cycles: &[PackedCycle]) -> Result<Vec<CycleRow>, Error> {
        debug_assert!(cycles.is_sorted_by(|a, b| a.key() < b.key()), "lock order of shards");
        let mut columns = Columns::default();
        for c in cycles {
            columns.push(c);
        }
        let params = columns.params();
        let rows = super::retried(|| self.query(include_str!("sql/cycles.sql"), &params))
            .await
            .inspect_err(|cause| self.doubt(cause))?;
        Ok(receipts(cycles, &rows))
    }

    /// The same for cycles whose sinks are made first, in the same transaction (streams Y1, P15).
    ///
    /// `queues` are sorted by name; their partitions carry [`Queue::NUMBER_PENDING`].
    ///
    /// # Errors
    /// As [`Db::cycles`]; [`Refusal::SinkMissing`] when somebody else made one of the queues
    /// meanwhile, under another id.
    pub async fn cycles_creating(
        &self,
        cycles: &[PackedCycle],
        partitions: &[NewPartition],
        queues: &[NewQueue],
    ) -> Result<Vec<CycleRow>, Error> {
        let mut columns = Columns::default();
        for c in cycles {
            columns.push(c);
        }
        let params = columns.params();
        self.session(async || {
            let mut client = self.pool.get().await?;
            let outcome = create_and_commit(&mut client, partitions, queues, &params).await;
            let (rows, made) = super::give_back(client, outcome)?;
            let mut out = receipts(cycles, &rows);
            for row in &mut out {
                row.made_queues.clone_from(&made);
            }
            Ok(out)
        })
        .await
    }
}

/// Makes queues and partitions and commits cycles, in one transaction.
async fn create_and_commit(
    client: &mut Client,
    partitions: &[NewPartition],
    queues: &[NewQueue],
    params: &[&(dyn ToSql + Sync)],
) -> Result<(Vec<Row>, Vec<Queue>), Error> {
    let txn = client.transaction().await?;
    let mut made = Vec::with_capacity(queues.len());
    let mut partitions = partitions.to_vec();
    for new in queues {
        let queue = insert_queue(&txn, new).await?.filter(|q| q.id == new.id);
        let queue = queue.ok_or_else(|| Error::Refused {
            refusal: Refusal::SinkMissing,
            text: format!("queue {} was created meanwhile", new.name),
        })?;
        for partition in &mut partitions {
            if partition.id == queue.partition_id(&partition.name) {
                partition.queue = queue.no;
            }
        }
        made.push(queue);
    }
    let (numbers, pids, ids, names) = partition_arrays(&partitions);
    let ensure: [&(dyn ToSql + Sync); 4] = [&numbers, &pids, &ids, &names];
    txn.query(include_str!("sql/partitions_ensure.sql"), &ensure).await?;
    let rows = txn.query(include_str!("sql/cycles.sql"), params).await?;
    txn.commit().await?;
    Ok((rows, made))
}

/// Reads the rows of `cycles_v1`: one receipt a cycle, in their order.
fn receipts(cycles: &[PackedCycle], rows: &[Row]) -> Vec<CycleRow> {
    let mut out: HashMap<i32, CycleRow> = HashMap::new();
    let mut claims = Vec::new();
    for row in rows {
        let ix: i32 = row.get("ix");
        let entry = out.entry(ix).or_insert_with(|| CycleRow {
            appended: Vec::new(),
            count: None,
            released: None,
            version: 0,
            next_due_ms: None,
            queue: None,
            next: None,
            made_queues: Vec::new(),
        });
        match row.get::<_, &str>("kind") {
            "push" => entry.appended.push((row.get("base_offset"), row.get("at"))),
            "cycle" => {
                entry.count = row.get("count");
                entry.released = row.get("released");
                entry.version = row.get("version");
                entry.next_due_ms = row.get("due");
                entry.queue = row.get::<_, Option<i64>>("queue_no").map(QueueNo);
            }
            _ => claims.push((ix, row)),
        }
    }
    for (ix, cycle) in (1_i32..).zip(cycles) {
        let mine = claims.iter().filter(|(of, _)| *of == ix);
        let lane = lanes_of(mine.map(|(_, row)| (cycle.partition.pid(), *row))).pop();
        if let Some(entry) = out.get_mut(&ix) {
            entry.next = lane;
        }
    }
    (1_i32..)
        .zip(cycles)
        .map(|(ix, _)| out.remove(&ix).expect("the function gives a row for each cycle"))
        .collect()
}
