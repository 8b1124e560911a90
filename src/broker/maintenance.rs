//! Maintenance: pushes are spooled, or pops answer empty, on every broker at once.
//!
//! The spool is a table. A replayed message is appended and leaves the spool in one transaction, so
//! that it arrives once, whoever replays and whenever that broker dies.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use super::appender::{NewMessage, Packer, Place};
use super::{Broker, PushItem, PushOutcome, Pushed};
use crate::db::maintenance::Spooled;
use crate::db::queue::NewPartition;
use crate::db::transaction::{Transacted, Transaction};
use crate::db::{Error, Refusal};
use crate::types::id::{TenantId, TxnHash};

/// Time between looks at the switches.
const LOOK: Duration = Duration::from_secs(1);
/// Messages of one round of the replay.
const BATCH: i64 = 500;

/// The switches as this broker knows them.
#[derive(Debug, Default)]
pub(super) struct Switches {
    push: AtomicBool,
    pop: AtomicBool,
}

/// Which switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maintenance {
    /// Pushes are spooled.
    Push,
    /// Pops answer empty.
    Pop,
}

impl Broker {
    /// Whether a switch is on, as far as this broker knows.
    #[must_use]
    pub fn in_maintenance(&self, which: Maintenance) -> bool {
        let switches = &self.inner.switches;
        match which {
            Maintenance::Push => switches.push.load(Ordering::Relaxed),
            Maintenance::Pop => switches.pop.load(Ordering::Relaxed),
        }
    }

    /// Sets a switch: persisted at once, known to other brokers within a second.
    ///
    /// # Errors
    /// When the store fails; nothing is changed then.
    pub async fn set_maintenance(&self, which: Maintenance, enabled: bool) -> Result<(), Error> {
        let name = match which {
            Maintenance::Push => "push",
            Maintenance::Pop => "pop",
        };
        self.inner.db.switch_set(name, enabled).await?;
        self.read_switches().await
    }

    /// Messages that wait in the spool.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn spooled(&self) -> Result<i64, Error> {
        self.inner.db.spool_count().await
    }

    async fn read_switches(&self) -> Result<(), Error> {
        let found = self.inner.db.switches().await?;
        self.inner.switches.push.store(found.push, Ordering::Relaxed);
        self.inner.switches.pop.store(found.pop, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the items of a push into the spool.
    pub(super) async fn spool(
        &self,
        tenant: TenantId,
        items: Vec<PushItem>,
    ) -> Result<Vec<Pushed>, Error> {
        let inner = &self.inner;
        let mut spooled = Vec::with_capacity(items.len());
        let mut pushed = Vec::with_capacity(items.len());
        for item in items {
            let queue = inner
                .directory
                .queue_ensure(&inner.db, tenant, &item.queue, &inner.implicit)
                .await?;
            let message_id = Uuid::now_v7();
            let given = item.transaction_id.clone();
            pushed.push(Pushed {
                outcome: PushOutcome::Buffered(message_id),
                transaction_id: given.unwrap_or_else(|| message_id.to_string()),
                queue: item.queue.clone(),
            });
            spooled.push(Spooled {
                id: 0,
                tenant,
                queue: item.queue,
                partition: item.partition,
                message_id,
                transaction_id: item.transaction_id,
                producer_sub: item.producer_sub,
                payload: inner.sealed(&queue, item.payload),
            });
        }
        inner.db.spool_insert(tenant, &spooled).await?;
        Ok(pushed)
    }

    /// Follows the switches, and replays the spool while pushes are not in maintenance.
    pub(super) async fn maintenance_loop(self) {
        let gauge = self.inner.metrics.loops.with_label_values(&["maintenance"]);
        gauge.set(1);
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                () = self.inner.stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
            wait = LOOK;
            if let Err(cause) = self.read_switches().await {
                tracing::debug!(%cause, "maintenance switches were not read");
                continue;
            }
            if self.in_maintenance(Maintenance::Push) {
                continue;
            }
            match self.replay().await {
                Ok(true) => wait = Duration::ZERO,
                Ok(false) => {}
                Err(cause) => tracing::debug!(%cause, "the spool was not replayed"),
            }
        }
        gauge.set(0);
    }

    /// Replays the oldest spooled messages; whether there were any.
    async fn replay(&self) -> Result<bool, Error> {
        let rows = self.inner.db.spool_next(BATCH).await?;
        if rows.is_empty() {
            return Ok(false);
        }
        let mut lanes: BTreeMap<(TenantId, String, String), Vec<Spooled>> = BTreeMap::new();
        for row in rows {
            let key = (row.tenant, row.queue.clone(), row.partition.clone());
            lanes.entry(key).or_default().push(row);
        }
        for ((tenant, queue, partition), rows) in lanes {
            self.replay_lane(tenant, &queue, &partition, &rows).await?;
        }
        Ok(true)
    }

    /// Appends the spooled messages of one partition and removes them, in one transaction.
    async fn replay_lane(
        &self,
        tenant: TenantId,
        queue: &str,
        partition: &str,
        rows: &[Spooled],
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let queue = inner.directory.queue_ensure(&inner.db, tenant, queue, &inner.implicit).await?;
        let window_ms = i64::from(queue.options.dedup_window_s) * 1000;
        let id = queue.partition_id(partition);
        let target = NewPartition { queue: queue.no, id, name: partition.to_owned() };
        let pid = target.pid();
        inner.dedup_refresh(&[(pid, window_ms)]).await?;
        let known = inner.dedup_known(pid, window_ms);
        let mut packer = Packer::default();
        let mut seen: HashMap<TxnHash, Place> = HashMap::new();
        for row in rows {
            let message = NewMessage {
                message_id: Some(row.message_id),
                transaction_id: row.transaction_id.clone(),
                trace_id: None,
                producer_sub: row.producer_sub.clone(),
                payload: row.payload.clone(),
            };
            let hash = message.transaction_id.as_deref().map(TxnHash::of);
            if let Some(hash) = hash {
                let stored = inner.find_original(pid, hash, &message, window_ms).await?;
                if seen.contains_key(&hash) || stored.is_some() {
                    continue;
                }
            }
            let place = packer.push(&message, hash);
            if let Some(hash) = hash {
                seen.insert(hash, place);
            }
        }
        let appends = packer.finish(pid, known, window_ms);
        let call = Transaction {
            create: vec![target],
            appends: appends.clone(),
            spooled: rows.iter().map(|row| row.id).collect(),
            ..Transaction::default()
        };
        match inner.db.transact(&call).await {
            Ok(Transacted::Committed { appended, .. }) => {
                for (append, (base, at)) in appends.iter().zip(appended) {
                    inner.dedup_appended(append, base, at);
                }
                if !appends.is_empty() {
                    inner.appended(queue.no, pid);
                }
                Ok(())
            }
            Ok(Transacted::AckRejected { .. }) => Ok(()),
            Err(cause) => {
                match cause.refusal() {
                    Some(Refusal::DedupStale) => inner.dedup.forget(pid),
                    Some(Refusal::SinkMissing) => inner.directory.forget_partition(id),
                    _ => {}
                }
                // Looked at again in the next round; others may have been faster.
                Err(cause)
            }
        }
    }
}
