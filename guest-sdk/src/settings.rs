//! What a chain says about itself, and what is wrong with it.

use crate::model::Failure;

#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) max_batch: u32,
    /// Mistakes in the chain, told by describe.
    pub(crate) problems: Vec<String>,
}

impl Settings {
    /// Refuses to run a chain with mistakes, should a host not have called describe.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.problems.is_empty() { Ok(()) } else { Err(Failure::Halt(self.problems.join("; "))) }
    }
}
