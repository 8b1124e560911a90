//! The log on bytes: one message as a frame, a run of frames as a segment.
//!
//! Pure code, no I/O. Whatever is read back is checked: bytes that were cut or flipped are an
//! error, never a message.

pub mod frame;
pub mod seal;
pub mod segment;

pub use frame::Frame;
pub use seal::Seal;
pub use segment::{Segment, SegmentBuilder};

/// Why stored bytes are no segment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes end inside a value.
    #[error("the segment ends inside {0}")]
    Truncated(&'static str),
    /// A value that no writer produces.
    #[error("the segment holds a bad {0}")]
    Malformed(&'static str),
    /// The compressed part does not unpack.
    #[error("the segment does not decompress")]
    Decompress(#[source] std::io::Error),
}
