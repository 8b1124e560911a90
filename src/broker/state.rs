//! State reads of outside workers.

use uuid::Uuid;

use super::Broker;
use crate::db::Error;
use crate::db::state::{StateFilter, StateRow};
use crate::types::id::{PartitionId, TenantId};

/// Why a state read failed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Broker {
    /// State rows of (query, partition); an unknown id of either kind reads as no rows (G13, G20).
    ///
    /// # Errors
    /// When the store fails.
    pub async fn state_get(
        &self,
        tenant: TenantId,
        query: Uuid,
        partition: PartitionId,
        filter: &StateFilter,
    ) -> Result<Vec<StateRow>, StateError> {
        let storable = |text: &String| !text.contains('\0');
        let mut filter = filter.clone();
        // A key that cannot be stored cannot be found either.
        if let Some(keys) = &mut filter.keys {
            keys.retain(storable);
        }
        if filter.prefix.as_ref().is_some_and(|prefix| !storable(prefix)) {
            return Ok(Vec::new());
        }
        Ok(self.inner.db.state_get(tenant, query, partition.pid(), &filter).await?)
    }
}
