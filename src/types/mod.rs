//! Plain values that every layer speaks: identities, the cycle, limits.
//!
//! Nothing here does input or output. Names are those of `style.md` and of the contract.

pub mod cycle;
pub mod id;
pub mod json;
pub mod limits;
