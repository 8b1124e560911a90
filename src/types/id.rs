//! Identities: tenants, queues, partitions, groups, queries.
//!
//! The wire shows uuids; the store joins on numbers. A partition's number is read from its uuid,
//! and the uuid is a hash of the queue's id and the partition's name, so neither needs a directory.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Consumer group of consumption without a group (contract: `__QUEUE_MODE__`).
pub const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// Partition of items that name none.
pub const DEFAULT_PARTITION: &str = "Default";

/// Owner of queues, queries and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub Uuid);

impl TenantId {
    /// Tenant of every request while tenancy is off (streams C6).
    pub const DEFAULT: Self = Self(Uuid::from_u128(1));
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a queue inside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueNo(pub i64);

/// Number of a (queue, consumer group) registration inside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupNo(pub i64);

/// Number of a query inside the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryNo(pub i64);

/// Number of a partition: 60 bits of its [`PartitionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub i64);

/// Wire id of a partition: a version-8 uuid over queue id and partition name.
///
/// A recreated queue has a new id, hence its partitions have new ids too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionId(pub Uuid);

impl PartitionId {
    /// The id of partition `name` of the queue whose wire id is `queue`.
    #[must_use]
    pub fn derive(queue: Uuid, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"foldmq partition\0");
        hash.update(queue.as_bytes());
        hash.update(name.as_bytes());
        let digest: [u8; 32] = hash.finalize().into();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The number inside the store: the 60 bits before the uuid's variant.
    #[must_use]
    pub fn pid(self) -> Pid {
        let high = self.0.as_u64_pair().0;
        // Leave the four version bits out: 48 bits above them, 12 below.
        let bits = ((high >> 16) << 12) | (high & 0xfff);
        Pid(i64::try_from(bits).expect("60 bits fit"))
    }
}

/// Hash of a transaction id: SHA-256 cut to 128 bits, so that nobody can make two ids collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxnHash(pub [u8; 16]);

impl TxnHash {
    /// Hashes a transaction id.
    #[must_use]
    pub fn of(transaction_id: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(transaction_id.as_bytes()).into();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes)
    }

    /// The first eight bytes, as the key of in-memory indexes whose hits are verified in the store.
    #[must_use]
    pub fn short(self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        u64::from_be_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_ids_depend_on_queue_and_name() {
        let (a, b) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let id = PartitionId::derive(a, "x");
        assert_eq!(id, PartitionId::derive(a, "x"));
        assert_ne!(id, PartitionId::derive(b, "x"));
        assert_ne!(id, PartitionId::derive(a, "y"));
        assert_eq!(id.0.get_version_num(), 8);
        assert!(id.pid().0 >= 0);
    }

    #[test]
    fn the_pid_uses_every_free_bit_before_the_variant() {
        let all = PartitionId(Uuid::from_u128(u128::MAX));
        assert_eq!(all.pid().0, (1 << 60) - 1);
        let version_only = PartitionId(Uuid::from_u128(0x8000_u128 << 64));
        assert_eq!(version_only.pid().0, 0);
    }
}
