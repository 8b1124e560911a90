//! The one lock order, on paper.
//!
//! Every transaction takes its locks in this order and each class in ascending key order, so a
//! deadlock is impossible among them; where PostgreSQL still reports one, the call is repeated
//! ([`super::retried`]).
//!
//! | class | lock | key order | taken by |
//! |---|---|---|---|
//! | 1 | `pg_advisory_xact_lock` [`MIGRATIONS`] | one key | start-up |
//! | 2 | queue row | `queue_no` | creation of partitions (share), registrations, deletion |
//! | 3 | new queue and partition rows | tenant, name; then pid | creation of what is missing |
//! | 4 | query row, key share | `query_no` | the first cycle of a shard |
//! | 4 | query row, no key update or update | one | registration; reset and deletion of a query |
//! | 5 | shard row, update | pid, `query_no` | cycles, reset and deletion of a query |
//! | 6 | partition row, update | pid | every append |
//! | 7 | cursor row, update | pid, `group_no` | settlement, claims (which skip locked ones) |
//! | 8 | dead-letter row, update | pid, id | replay, removal, deletion of a queue |
//!
//! A group row (`group_no`) is locked for its deletion after class 2. Claims that make a cursor
//! share it while they hold cursors; they skip a locked one, so they never wait for it.
//!
//! No code path locks a partition row while it holds a cursor row (streams X3).

/// Key of the lock under which migrations run.
pub const MIGRATIONS: i64 = 0x666f_6c64_6d71_0001;
