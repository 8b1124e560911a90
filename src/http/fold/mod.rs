//! What only FoldMQ has: modules, and the life of queries that the server runs.

pub(super) mod modules;
pub(super) mod queries;
