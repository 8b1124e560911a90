//! Pushes and acks that commit together.

use deadpool_postgres::GenericClient;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::append::{Append, Appended, push_in_txn};
use super::queue::{NewPartition, partition_arrays};
use super::settle::{AckGroup, GroupOutcome, Snapshot, settle_in_txn};
use super::{Db, Error, Refusal};
use crate::types::id::Pid;

/// Rounds in which the store may ask for the snapshot of a message.
const ROUNDS_MAX: usize = 8;

/// What commits together.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Partitions to make first.
    pub create: Vec<NewPartition>,
    /// Segments, sorted by pid.
    pub appends: Vec<Append>,
    /// Spooled messages that leave the spool with the commit.
    pub spooled: Vec<i64>,
    /// Acks; each must be carried out.
    pub acks: Vec<AckGroup>,
    /// Reason of a dead letter, by group and in the group by item.
    pub reasons: Vec<Vec<Option<String>>>,
}

/// What became of a [`Transaction`].
#[derive(Clone, Debug)]
pub enum Transacted {
    /// Committed.
    Committed {
        /// For each append: base offset and commit time.
        appended: Vec<(i64, Timestamp)>,
        /// For each group of acks.
        groups: Vec<GroupOutcome>,
    },
    /// An ack could not be carried out: everything was rolled back.
    AckRejected {
        /// Partition of the ack.
        pid: Pid,
        /// Why.
        error: String,
    },
}

/// Takes a late ack as done: it settles nothing and is no reason to roll back.
fn rejected(outcome: &GroupOutcome) -> Option<&str> {
    let late = |error: &&str| *error != "already committed";
    outcome.items.iter().filter_map(|item| item.error.as_deref()).find(late)
}

impl Db {
    /// Commits pushes and acks together, or none of them.
    ///
    /// Locks are taken in order: new partitions, partition rows, cursor rows.
    ///
    /// # Errors
    /// [`Refusal::DedupStale`] and [`Refusal::SinkMissing`] ask the caller to look again.
    pub async fn transact(&self, t: &Transaction) -> Result<Transacted, Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let txn = client.transaction().await?;
            if !t.create.is_empty() {
                let (queues, pids, ids, names) = partition_arrays(&t.create);
                let ensure: [&(dyn ToSql + Sync); 4] = [&queues, &pids, &ids, &names];
                txn.query(include_str!("sql/partitions_ensure.sql"), &ensure).await?;
            }
            let mut appended = Vec::with_capacity(t.appends.len());
            if !t.appends.is_empty() {
                for outcome in push_in_txn(&txn, &t.appends).await? {
                    let refusal = match outcome {
                        Appended::At { base_offset, created_at } => {
                            appended.push((base_offset, created_at));
                            continue;
                        }
                        Appended::Stale => Refusal::DedupStale,
                        Appended::Missing => Refusal::SinkMissing,
                    };
                    return Err(Error::Refused { refusal, text: "look again".to_owned() });
                }
            }
            if !t.spooled.is_empty() {
                let gone = txn.execute(include_str!("sql/spool_delete.sql"), &[&t.spooled]).await?;
                if usize::try_from(gone).ok() != Some(t.spooled.len()) {
                    let text = "another broker replayed the spool".to_owned();
                    return Err(Error::Refused { refusal: Refusal::AlreadyApplied, text });
                }
            }
            match settle_all(&txn, t).await? {
                Ok(groups) => {
                    txn.commit().await?;
                    Ok(Transacted::Committed { appended, groups })
                }
                Err((pid, error)) => {
                    txn.rollback().await?;
                    Ok(Transacted::AckRejected { pid, error })
                }
            }
        })
        .await
    }

    /// Live leases of (partition, group) pairs.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn current_leases(
        &self,
        pairs: &[(Pid, String)],
    ) -> Result<Vec<(Pid, String, Uuid)>, Error> {
        let pids: Vec<i64> = pairs.iter().map(|p| p.0.0).collect();
        let names: Vec<&str> = pairs.iter().map(|p| p.1.as_str()).collect();
        let rows = self.query(include_str!("sql/current_leases.sql"), &[&pids, &names]).await?;
        Ok(rows
            .iter()
            .map(|row| (Pid(row.get("pid")), row.get("name"), row.get("lease_id")))
            .collect())
    }
}

type Settled = Result<Vec<GroupOutcome>, (Pid, String)>;

/// Settles every group; gives the snapshots of dead letters that the store asks for.
async fn settle_all(txn: &impl GenericClient, t: &Transaction) -> Result<Settled, Error> {
    let mut done = vec![GroupOutcome::default(); t.acks.len()];
    let mut acks = t.acks.clone();
    let mut open: Vec<usize> = (0..acks.len()).collect();
    for _ in 0..ROUNDS_MAX {
        if open.is_empty() {
            return Ok(Ok(done));
        }
        let call: Vec<AckGroup> = open.iter().map(|at| acks[*at].clone()).collect();
        let outcomes = settle_in_txn(txn, &call).await?;
        let mut again = Vec::new();
        for (at, outcome) in open.into_iter().zip(outcomes) {
            if let Some(offset) = outcome.need_dead {
                acks[at].dead = snapshot(txn, &acks[at], offset, &t.reasons[at]).await?;
                again.push(at);
                continue;
            }
            if let Some(error) = rejected(&outcome) {
                return Ok(Err((acks[at].partition.pid(), error.to_owned())));
            }
            done[at] = outcome;
        }
        open = again;
    }
    let pid = acks[open[0]].partition.pid();
    Ok(Err((pid, "the message could not be dead-lettered".to_owned())))
}

async fn snapshot(
    txn: &impl GenericClient,
    group: &AckGroup,
    offset: i64,
    reasons: &[Option<String>],
) -> Result<Option<Snapshot>, Error> {
    let stored = super::append::frame_in_txn(txn, group.partition.pid(), offset).await?;
    Ok(stored.map(|stored| Snapshot::of(group, offset, stored, reasons)))
}
