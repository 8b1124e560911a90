//! Transactions: pushes and acks that commit together (data-plane section 6).

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::appender::{NewMessage, Packer, Place};
use super::{Ack, Broker};
use crate::db::append::Append;
use crate::db::queue::NewPartition;
use crate::db::settle::AckGroup;
use crate::db::transaction::{Transacted, Transaction};
use crate::db::{Error, Refusal};
use crate::types::id::{PartitionId, Pid, TenantId, TxnHash};
use crate::types::limits::RETRIES_MAX;

/// One message of a transaction.
#[derive(Clone, Debug)]
pub struct TransactPush {
    /// Target queue, created if missing.
    pub queue: String,
    /// Target partition, created if missing.
    pub partition: String,
    /// JSON text.
    pub payload: String,
    /// Idempotency key; the minted message id where absent.
    pub transaction_id: Option<String>,
    /// Survives to the popped message.
    pub trace_id: Option<Uuid>,
    /// Subject of the producer's token.
    pub producer_sub: Option<String>,
}

/// One step, in request order.
#[derive(Clone, Debug)]
pub enum TransactStep {
    /// Store a message.
    Push(TransactPush),
    /// Settle a message.
    Ack(Ack),
}

/// What became of a step.
#[derive(Clone, Debug)]
pub enum TransactResult {
    /// A message that was stored.
    Pushed {
        /// Its id, or that of the first of its kind.
        message_id: Uuid,
        /// Its transaction id.
        transaction_id: String,
        /// Its queue.
        queue: String,
        /// A repeat inside this transaction.
        duplicate: bool,
    },
    /// An ack that was carried out.
    Acked {
        /// Address of the message.
        transaction_id: String,
        /// It was dead-lettered.
        dead: bool,
    },
}

/// Why a transaction was rolled back; nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum TransactError {
    /// A pushed transaction id is stored already.
    #[error("QDUP transactionId {transaction_id:?} is already stored in {queue}/{partition}")]
    Duplicate {
        /// The id.
        transaction_id: String,
        /// Queue that holds it.
        queue: String,
        /// Partition that holds it.
        partition: String,
    },
    /// An ack could not be carried out.
    #[error("QTXN {0}")]
    AckRejected(String),
    /// A push without a queue.
    #[error("{0}")]
    BadRequest(String),
    /// The store failed, or its answer was lost.
    #[error("the store failed")]
    Store(#[from] Error),
}

/// Messages of one partition.
struct Group {
    target: NewPartition,
    queue: String,
    window_ms: i64,
    steps: Vec<usize>,
    messages: Vec<NewMessage>,
}

/// What is known of a group before the commit.
struct Planned {
    places: Vec<(usize, Place, bool)>,
    first: usize,
    n: usize,
}

impl Broker {
    /// Commits all steps or none.
    ///
    /// # Errors
    /// Any [`TransactError`]; nothing is stored then, but for [`TransactError::Store`], whose
    /// outcome may be unknown.
    pub async fn transact(
        &self,
        tenant: TenantId,
        steps: Vec<TransactStep>,
        required_leases: Vec<Uuid>,
    ) -> Result<Vec<TransactResult>, TransactError> {
        // A task of its own: a caller that goes away must not cost the wake-ups after the commit.
        let broker = self.clone();
        let task = self
            .inner
            .tasks
            .spawn(async move { broker.transact_to_end(tenant, &steps, &required_leases).await });
        task.await.unwrap_or_else(|cause| std::panic::resume_unwind(cause.into_panic()))
    }

    async fn transact_to_end(
        &self,
        tenant: TenantId,
        steps: &[TransactStep],
        required: &[Uuid],
    ) -> Result<Vec<TransactResult>, TransactError> {
        let inner = &self.inner;
        let groups = self.push_groups(tenant, steps).await?;
        let (acks, ack_steps, reasons) = self.ack_groups(tenant, steps, required).await?;
        let mut attempt = 0;
        loop {
            let windows: Vec<(Pid, i64)> =
                groups.iter().map(|g| (g.target.pid(), g.window_ms)).collect();
            inner.dedup_refresh(&windows).await?;
            let mut appends = Vec::new();
            let mut plans = Vec::with_capacity(groups.len());
            for group in &groups {
                plans.push(self.plan_group(group, &mut appends).await?);
            }
            let mut create = Vec::new();
            for group in &groups {
                if inner.directory.partition(&inner.db, group.target.id).await?.is_none() {
                    create.push(group.target.clone());
                }
            }
            let call = Transaction {
                create,
                appends: appends.clone(),
                spooled: Vec::new(),
                acks: acks.clone(),
                reasons: reasons.clone(),
            };
            attempt += 1;
            match inner.db.transact(&call).await {
                Ok(Transacted::Committed { appended, groups: outcomes }) => {
                    let results = self.transacted(steps, &groups, &plans, &appends, &appended);
                    return Ok(self.acked(results, steps, &acks, &ack_steps, &outcomes));
                }
                Ok(Transacted::AckRejected { pid, error }) => {
                    let name = acks.iter().find(|a| a.partition.pid() == pid);
                    let name = name.map_or_else(String::new, |a| a.partition.0.to_string());
                    return Err(TransactError::AckRejected(format!("partition {name}: {error}")));
                }
                Err(cause) if attempt <= RETRIES_MAX => match cause.refusal() {
                    Some(Refusal::DedupStale) => {
                        for group in &groups {
                            inner.dedup.forget(group.target.pid());
                        }
                    }
                    Some(Refusal::SinkMissing) => {
                        for group in &groups {
                            inner.directory.forget_partition(group.target.id);
                        }
                    }
                    _ => return Err(cause.into()),
                },
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Groups of pushes, sorted by pid: the lock order.
    async fn push_groups(
        &self,
        tenant: TenantId,
        steps: &[TransactStep],
    ) -> Result<Vec<Group>, TransactError> {
        let inner = &self.inner;
        let mut groups: BTreeMap<Pid, Group> = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            let TransactStep::Push(push) = step else { continue };
            if push.queue.is_empty() {
                return Err(TransactError::BadRequest("queue must not be empty".to_owned()));
            }
            let queue = inner
                .directory
                .queue_ensure(&inner.db, tenant, &push.queue, &inner.implicit)
                .await?;
            let id = queue.partition_id(&push.partition);
            let group = groups.entry(id.pid()).or_insert_with(|| Group {
                target: NewPartition { queue: queue.no, id, name: push.partition.clone() },
                queue: push.queue.clone(),
                window_ms: i64::from(queue.options.dedup_window_s) * 1000,
                steps: Vec::new(),
                messages: Vec::new(),
            });
            group.steps.push(at);
            group.messages.push(NewMessage {
                message_id: None,
                transaction_id: push.transaction_id.clone(),
                trace_id: push.trace_id,
                producer_sub: push.producer_sub.clone(),
                payload: inner.sealed(&queue, push.payload.clone()),
            });
        }
        Ok(groups.into_values().collect())
    }

    /// Packs a group; a message that is stored already rolls everything back.
    async fn plan_group(
        &self,
        group: &Group,
        appends: &mut Vec<Append>,
    ) -> Result<Planned, TransactError> {
        let pid = group.target.pid();
        let known = self.inner.dedup_known(pid, group.window_ms);
        let mut packer = Packer::default();
        let mut seen: HashMap<TxnHash, Place> = HashMap::new();
        let mut places = Vec::with_capacity(group.messages.len());
        for (step, message) in group.steps.iter().zip(&group.messages) {
            let hash = message.transaction_id.as_deref().map(TxnHash::of);
            if let Some(hash) = hash {
                if let Some(first) = seen.get(&hash) {
                    places.push((*step, *first, true));
                    continue;
                }
                let stored = self.inner.find_original(pid, hash, message, group.window_ms).await?;
                if stored.is_some() {
                    return Err(TransactError::Duplicate {
                        transaction_id: message.transaction_id.clone().unwrap_or_default(),
                        queue: group.queue.clone(),
                        partition: group.target.name.clone(),
                    });
                }
            }
            let place = packer.push(message, hash);
            if let Some(hash) = hash {
                seen.insert(hash, place);
            }
            places.push((*step, place, false));
        }
        let first = appends.len();
        appends.extend(packer.finish(pid, known, group.window_ms));
        Ok(Planned { places, first, n: appends.len() - first })
    }

    /// Groups of acks by (partition, group), each with the lease that it rests on.
    async fn ack_groups(
        &self,
        tenant: TenantId,
        steps: &[TransactStep],
        required: &[Uuid],
    ) -> Result<AckPlan, TransactError> {
        let inner = &self.inner;
        let mut groups: Vec<AckGroup> = Vec::new();
        let mut places: Vec<Vec<usize>> = Vec::new();
        let mut reasons: Vec<Vec<Option<String>>> = Vec::new();
        let mut by_pair: HashMap<(PartitionId, String), usize> = HashMap::new();
        let mut named: Vec<Uuid> = required.to_vec();
        for (at, step) in steps.iter().enumerate() {
            let TransactStep::Ack(ack) = step else { continue };
            let reject = |why: &str| TransactError::AckRejected(why.to_owned());
            let partition = ack.partition.ok_or_else(|| reject("malformed partitionId"))?;
            let owned = inner.directory.partition(&inner.db, partition).await?;
            if owned.is_none_or(|p| p.queue.tenant != tenant) {
                return Err(reject("partition not found"));
            }
            named.extend(ack.lease);
            let slot = *by_pair.entry((partition, ack.group.clone())).or_insert_with(|| {
                groups.push(AckGroup {
                    partition,
                    group: ack.group.clone(),
                    lease: None,
                    items: Vec::new(),
                    dead: None,
                });
                places.push(Vec::new());
                reasons.push(Vec::new());
                groups.len() - 1
            });
            groups[slot].lease = groups[slot].lease.or(ack.lease);
            groups[slot].items.push((TxnHash::of(&ack.transaction_id), ack.status));
            places[slot].push(at);
            reasons[slot].push(ack.error.clone());
        }
        self.fill_leases(&mut groups, required, named).await?;
        Ok((groups, places, reasons))
    }

    /// Where the request names any lease, every pair of acks rests on one.
    async fn fill_leases(
        &self,
        groups: &mut [AckGroup],
        required: &[Uuid],
        mut named: Vec<Uuid>,
    ) -> Result<(), TransactError> {
        named.sort_unstable();
        named.dedup();
        let open: Vec<(Pid, String)> = groups
            .iter()
            .filter(|g| g.lease.is_none())
            .map(|g| (g.partition.pid(), g.group.clone()))
            .collect();
        if named.is_empty() || open.is_empty() {
            return Ok(());
        }
        let live = self.inner.db.current_leases(&open).await?;
        for group in groups.iter_mut().filter(|g| g.lease.is_none()) {
            let pid = group.partition.pid();
            let holder = live
                .iter()
                .find(|(p, name, lease)| {
                    *p == pid && *name == group.group && required.contains(lease)
                })
                .map(|(_, _, lease)| *lease);
            // The only lease that the request names may be a dead one: the store refuses it then.
            let only = (named.len() == 1).then(|| named[0]);
            group.lease = Some(holder.or(only).ok_or_else(|| {
                let id = group.partition.0;
                TransactError::AckRejected(format!("lease of partition {id} is no longer valid"))
            })?);
        }
        Ok(())
    }

    /// Bookkeeping of the pushes, and their results by step.
    fn transacted(
        &self,
        steps: &[TransactStep],
        groups: &[Group],
        plans: &[Planned],
        appends: &[Append],
        appended: &[(i64, jiff::Timestamp)],
    ) -> Vec<Option<TransactResult>> {
        let inner = &self.inner;
        let mut results = vec![None; steps.len()];
        let mut stored_n = 0;
        for (group, plan) in groups.iter().zip(plans) {
            let range = plan.first..plan.first + plan.n;
            let mut bases = Vec::with_capacity(plan.n);
            for (append, (base, at)) in appends[range.clone()].iter().zip(&appended[range]) {
                inner.dedup_appended(append, *base, *at);
                bases.push((*base, i64::from(append.segment.n)));
                stored_n += u64::try_from(append.segment.n).unwrap_or_default();
            }
            inner.appended(group.target.queue, group.target.pid());
            for (step, place, duplicate) in &plan.places {
                let (message_id, _) = place.resolve(&bases);
                let TransactStep::Push(push) = &steps[*step] else { continue };
                let given = push.transaction_id.clone();
                results[*step] = Some(TransactResult::Pushed {
                    message_id,
                    transaction_id: given.unwrap_or_else(|| message_id.to_string()),
                    queue: push.queue.clone(),
                    duplicate: *duplicate,
                });
            }
        }
        inner.metrics.messages.with_label_values(&["push"]).inc_by(stored_n);
        results
    }

    /// Bookkeeping of the acks; completes the results.
    fn acked(
        &self,
        mut results: Vec<Option<TransactResult>>,
        steps: &[TransactStep],
        acks: &[AckGroup],
        places: &[Vec<usize>],
        outcomes: &[crate::db::settle::GroupOutcome],
    ) -> Vec<TransactResult> {
        let inner = &self.inner;
        for ((group, places), outcome) in acks.iter().zip(places).zip(outcomes) {
            if let (true, Some(queue)) = (outcome.released, outcome.queue) {
                inner.released(queue, &group.group, group.partition.pid());
            }
            for (step, item) in places.iter().zip(&outcome.items) {
                let TransactStep::Ack(ack) = &steps[*step] else { continue };
                inner.metrics.dead_letters.inc_by(u64::from(item.dead));
                results[*step] = Some(TransactResult::Acked {
                    transaction_id: ack.transaction_id.clone(),
                    dead: item.dead,
                });
            }
            let n = outcome.items.len() as u64;
            inner.metrics.messages.with_label_values(&["ack"]).inc_by(n);
        }
        results.into_iter().flatten().collect()
    }
}

type AckPlan = (Vec<AckGroup>, Vec<Vec<usize>>, Vec<Vec<Option<String>>>);
