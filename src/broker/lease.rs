//! Leases that this broker gave, and their extension.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use uuid::Uuid;

use super::Broker;
use crate::db::Error;
use crate::types::id::TenantId;
use crate::types::limits::LEASE_S_MAX;

/// How long the partitions of a lease are remembered without an extension.
const MEMORY: Duration = Duration::from_secs(600);
/// Leases remembered before old ones are looked for.
const SWEEP_AT: usize = 20_000;

/// Which partitions a lease covers, so that an extension need not search for them.
#[derive(Default)]
pub(super) struct Leases {
    memory: Mutex<HashMap<Uuid, (Vec<i64>, Instant)>>,
}

impl Leases {
    pub(super) fn remember(&self, lease: Uuid, pids: Vec<i64>) {
        if pids.is_empty() {
            return;
        }
        let mut memory = self.memory.lock().expect("no holder panics");
        if memory.len() >= SWEEP_AT {
            memory.retain(|_, (_, at)| at.elapsed() < MEMORY);
            if memory.len() >= SWEEP_AT {
                memory.clear();
            }
        }
        let entry = memory.entry(lease).or_insert_with(|| (Vec::new(), Instant::now()));
        entry.0.extend(pids);
    }

    fn pids(&self, lease: Uuid) -> Option<Vec<i64>> {
        let mut memory = self.memory.lock().expect("no holder panics");
        let entry = memory.get_mut(&lease)?;
        entry.1 = Instant::now();
        Some(entry.0.clone())
    }
}

/// What an extension did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Partitions extended.
    pub renewed: usize,
    /// The earliest new end; `None` when nothing was extended.
    pub expires_at: Option<Timestamp>,
}

impl Broker {
    /// Extends every partition of a live lease to at least `seconds` from now (data-plane 69-73).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn extend(
        &self,
        tenant: TenantId,
        lease: Uuid,
        seconds: i64,
    ) -> Result<Extended, Error> {
        let seconds = seconds.clamp(1, LEASE_S_MAX);
        let pids = self.inner.leases.pids(lease);
        let ends = self.inner.db.lease_extend(tenant, lease, pids.as_deref(), seconds).await?;
        Ok(Extended { renewed: ends.len(), expires_at: ends.into_iter().min() })
    }
}
