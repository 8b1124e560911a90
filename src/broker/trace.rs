//! Traces: what workers record about messages.

use uuid::Uuid;

use super::Broker;
use crate::db::Error;
use crate::db::trace::{NewTrace, TraceRow};
use crate::types::id::{PartitionId, TenantId};

/// A trace as a worker gives it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Partition of the message.
    pub partition: PartitionId,
    /// Id that acks name. The message need not be retained.
    pub transaction_id: String,
    /// Group that speaks.
    pub group: String,
    /// What happened.
    pub event_type: String,
    /// JSON text.
    pub data: String,
    /// Names to list it under.
    pub names: Vec<String>,
}

impl Broker {
    /// Records a trace; its id, or `None` where the partition is not the tenant's.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn trace(&self, tenant: TenantId, trace: Trace) -> Result<Option<Uuid>, Error> {
        if self.owned(tenant, trace.partition).await?.is_none() {
            return Ok(None);
        }
        let mut names = trace.names;
        names.sort_unstable();
        names.dedup();
        let new = NewTrace {
            pid: trace.partition.pid(),
            id: Uuid::now_v7(),
            transaction_id: trace.transaction_id,
            group: trace.group,
            event_type: trace.event_type,
            data: trace.data,
            names,
        };
        let worker = format!("foldmq-{:016x}", self.inner.instance);
        self.inner.db.trace_insert(tenant, &new, &worker).await?;
        Ok(Some(new.id))
    }

    /// The traces of a message, oldest first; none where the partition is not the tenant's.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn traces(
        &self,
        tenant: TenantId,
        partition: PartitionId,
        transaction_id: &str,
    ) -> Result<Vec<TraceRow>, Error> {
        if self.owned(tenant, partition).await?.is_none() {
            return Ok(Vec::new());
        }
        self.inner.db.trace_of_message(partition.pid(), transaction_id).await
    }
}
