//! The three routes of `/streams/v1` that outside workers use.

pub(super) mod cycle;
pub(super) mod queries;
pub(super) mod state;
