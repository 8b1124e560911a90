//! `/api/v1`: the data plane.

pub(super) mod ack;
pub(super) mod configure;
pub(super) mod lease;
pub(super) mod pop;
mod pop_answer;
pub(super) mod push;
pub(super) mod queue;
pub(super) mod transaction;
