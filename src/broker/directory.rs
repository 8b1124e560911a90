//! What the broker remembers of queues, partitions, groups and queries.
//!
//! Everything here can be read again from the store. Identities never change while their row
//! lives; options are re-read after [`QUEUE_TTL`] at the latest, and at once when this broker or
//! another one says that they changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::db::group::{Group, Start};
use crate::db::queue::{Queue, QueueOptions};
use crate::db::{Db, Error};
use crate::types::id::{PartitionId, Pid, QueryNo, QueueNo, TenantId};

/// Longest age of remembered queue options.
const QUEUE_TTL: Duration = Duration::from_secs(30);
/// Remembered partitions, about 200 bytes each; beyond it the memory starts anew.
const PARTITIONS_MAX: usize = 500_000;

/// A partition with its queue.
#[derive(Debug)]
pub struct Partition {
    /// Wire id.
    pub id: PartitionId,
    /// Name.
    pub name: String,
    /// Its queue. Options may be up to [`QUEUE_TTL`] old.
    pub queue: Arc<Queue>,
}

#[derive(Default)]
struct Memory {
    queues: HashMap<(TenantId, String), (Arc<Queue>, Instant)>,
    partitions: HashMap<PartitionId, Arc<Partition>>,
    by_pid: HashMap<Pid, Arc<Partition>>,
    groups: HashMap<(QueueNo, String), Group>,
    queries: HashMap<(TenantId, Uuid), QueryNo>,
}

/// The caches. Locks are short and never held across an await.
#[derive(Default)]
pub(super) struct Directory {
    memory: Mutex<Memory>,
}

impl Directory {
    fn with<T>(&self, f: impl FnOnce(&mut Memory) -> T) -> T {
        f(&mut self.memory.lock().expect("no holder panics"))
    }

    /// The queue of that name, if it exists.
    pub(super) async fn queue(
        &self,
        db: &Db,
        tenant: TenantId,
        name: &str,
    ) -> Result<Option<Arc<Queue>>, Error> {
        let known = self.with(|m| {
            m.queues
                .get(&(tenant, name.to_owned()))
                .filter(|(_, at)| at.elapsed() < QUEUE_TTL)
                .map(|(queue, _)| Arc::clone(queue))
        });
        if known.is_some() {
            return Ok(known);
        }
        let found = db.queue_find(tenant, name).await?.map(Arc::new);
        match &found {
            Some(queue) => self.remember(queue),
            None => self.with(|m| {
                m.queues.remove(&(tenant, name.to_owned()));
            }),
        }
        Ok(found)
    }

    /// Remembers fresh options.
    pub(super) fn remember(&self, queue: &Arc<Queue>) {
        self.with(|m| {
            m.queues
                .insert((queue.tenant, queue.name.clone()), (Arc::clone(queue), Instant::now()));
        });
    }

    /// The queue of that name, created as an implicit one if missing (data-plane 7.2).
    pub(super) async fn queue_ensure(
        &self,
        db: &Db,
        tenant: TenantId,
        name: &str,
        implicit: &QueueOptions,
    ) -> Result<Arc<Queue>, Error> {
        if let Some(queue) = self.queue(db, tenant, name).await? {
            return Ok(queue);
        }
        let (namespace, task) = labels(name);
        let queue = Arc::new(db.queue_ensure(tenant, name, namespace, task, implicit).await?);
        self.remember(&queue);
        Ok(queue)
    }

    /// The partition with that wire id, if it exists.
    pub(super) async fn partition(
        &self,
        db: &Db,
        id: PartitionId,
    ) -> Result<Option<Arc<Partition>>, Error> {
        if let Some(known) = self.with(|m| m.partitions.get(&id).cloned()) {
            return Ok(Some(known));
        }
        let Some((name, queue)) = db.partition_find(id).await? else { return Ok(None) };
        let partition = Arc::new(Partition { id, name, queue: Arc::new(queue) });
        self.learn(&partition);
        Ok(Some(partition))
    }

    /// Remembers a partition that exists.
    pub(super) fn learn(&self, partition: &Arc<Partition>) {
        self.with(|m| {
            if m.partitions.len() >= PARTITIONS_MAX {
                m.partitions.clear();
                m.by_pid.clear();
            }
            m.partitions.insert(partition.id, Arc::clone(partition));
            m.by_pid.insert(partition.id.pid(), Arc::clone(partition));
        });
    }

    /// A partition by its number, if remembered.
    pub(super) fn by_pid(&self, pid: Pid) -> Option<Arc<Partition>> {
        self.with(|m| m.by_pid.get(&pid).cloned())
    }

    /// Whether the partition was seen to exist.
    pub(super) fn exists(&self, pid: Pid) -> bool {
        self.with(|m| m.by_pid.contains_key(&pid))
    }

    /// The registration of a group, made on first contact.
    pub(super) async fn group(
        &self,
        db: &Db,
        queue: QueueNo,
        name: &str,
        start: Start,
        conflation: bool,
    ) -> Result<Option<Group>, Error> {
        if let Some(known) = self.with(|m| m.groups.get(&(queue, name.to_owned())).copied()) {
            return Ok(Some(known));
        }
        let group = db.group_register(queue, name, start, conflation).await?;
        if let Some(group) = group {
            self.with(|m| m.groups.insert((queue, name.to_owned()), group));
        }
        Ok(group)
    }

    /// The number of a query by its wire id.
    pub(super) async fn query(
        &self,
        db: &Db,
        tenant: TenantId,
        id: Uuid,
    ) -> Result<Option<QueryNo>, Error> {
        if let Some(known) = self.with(|m| m.queries.get(&(tenant, id)).copied()) {
            return Ok(Some(known));
        }
        let found = db.query_find(tenant, id).await?.map(|q| q.no);
        if let Some(no) = found {
            self.with(|m| m.queries.insert((tenant, id), no));
        }
        Ok(found)
    }

    /// Forgets everything about a queue.
    pub(super) fn forget_queue(&self, no: QueueNo) {
        self.with(|m| {
            m.queues.retain(|_, (queue, _)| queue.no != no);
            m.groups.retain(|(queue, _), _| *queue != no);
            let gone: Vec<PartitionId> =
                m.partitions.values().filter(|p| p.queue.no == no).map(|p| p.id).collect();
            for id in gone {
                m.partitions.remove(&id);
                m.by_pid.remove(&id.pid());
            }
        });
    }

    /// Forgets that a partition exists.
    pub(super) fn forget_partition(&self, id: PartitionId) {
        self.with(|m| {
            m.partitions.remove(&id);
            m.by_pid.remove(&id.pid());
        });
    }

    /// Forgets a registration of a group.
    pub(super) fn forget_groups(&self) {
        self.with(|m| m.groups.clear());
    }

    /// Forgets queries.
    pub(super) fn forget_queries(&self) {
        self.with(|m| m.queries.clear());
    }
}

/// Namespace and task of an implicit queue: the first and second dot-separated part of its name.
pub(super) fn labels(name: &str) -> (&str, &str) {
    let mut parts = name.split('.');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}
