//! Consumer groups as operators move them: deletion and seek.

use jiff::Timestamp;

use super::Broker;
use crate::db::Error;
use crate::db::group::Start;
use crate::db::group_admin::Seek;
use crate::types::id::{PartitionId, TenantId};

/// Where a seek puts cursors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Past everything that is there.
    End,
    /// Before the first message committed at or after the instant.
    At(Timestamp),
}

/// Why cursors were not moved.
#[derive(Debug, thiserror::Error)]
pub enum SeekError {
    /// No such queue, or it has no partition of that name, or none at all.
    #[error("the queue or the partition does not exist")]
    NotFound,
    /// The store failed; nothing was moved, or the outcome is unknown.
    #[error(transparent)]
    Store(#[from] Error),
}

impl Broker {
    /// Deletes the cursors of a group on one queue or on all; how many there were. Leases on them
    /// end.
    ///
    /// With `registration` the group starts anew at its next pop; otherwise its stored start sets
    /// new cursors at once.
    ///
    /// # Errors
    /// When the store fails; nothing is deleted then.
    pub async fn group_delete(
        &self,
        tenant: TenantId,
        group: &str,
        queue: Option<&str>,
        registration: bool,
    ) -> Result<usize, Error> {
        let inner = &self.inner;
        let gone = inner.db.group_remove(tenant, group, queue, registration).await?;
        if registration {
            inner.directory.forget_groups();
            self.queries_changed();
        }
        for (queue, pid) in &gone {
            inner.released(*queue, group, *pid);
        }
        Ok(gone.len())
    }

    /// Moves the cursors of a group on one partition or on all of a queue; on how many. A group
    /// that never popped is registered with `start` first. Leases on moved cursors end.
    ///
    /// # Errors
    /// [`SeekError::NotFound`], or when the store fails.
    pub async fn group_seek(
        &self,
        tenant: TenantId,
        queue: &str,
        partition: Option<&str>,
        group: &str,
        start: Start,
        to: SeekTo,
    ) -> Result<usize, SeekError> {
        let inner = &self.inner;
        let found = inner.db.queue_find(tenant, queue).await?.ok_or(SeekError::NotFound)?;
        let seek = Seek {
            queue: found.no,
            group: group.to_owned(),
            start,
            partition: partition.map(|name| PartitionId::derive(found.id, name).pid()),
            to: match to {
                SeekTo::End => None,
                SeekTo::At(at) => Some(at),
            },
        };
        let moved = inner.db.group_seek(&seek).await?;
        if moved.is_empty() {
            return Err(SeekError::NotFound);
        }
        for pid in &moved {
            inner.released(found.no, group, *pid);
        }
        Ok(moved.len())
    }
}
