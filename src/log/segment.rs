//! A run of frames with consecutive offsets, compressed, and the hashes beside it.
//!
//! Layout of the stored bytes: format (1), codec (1), size before compression (4, little-endian),
//! then the frames, plain or zstd. Hashes are stored apart: 16 bytes a frame, in frame order.

use uuid::Uuid;

use super::{Error, Frame};
use crate::types::id::TxnHash;

const FORMAT: u8 = 1;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const HEADER: usize = 6;
/// Level 1: the log is bound by commits, not by bytes.
const LEVEL: i32 = 1;
/// Below this size compression only adds a header.
const COMPRESS_FROM: usize = 128;
/// A segment larger than this was not written by a broker: a message is at most a body, 64 MiB.
const RAW_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A finished segment, ready for the allocator.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Number of frames.
    pub n: i32,
    /// Size of the frames before compression, bytes.
    pub raw_bytes: i32,
    /// Id of the first message.
    pub first_id: Uuid,
    /// Id of the last message.
    pub last_id: Uuid,
    /// 16 bytes a frame.
    pub hashes: Vec<u8>,
    /// Stored bytes.
    pub payload: Vec<u8>,
}

/// Collects frames into a [`Segment`].
#[derive(Debug, Default)]
pub struct SegmentBuilder {
    raw: Vec<u8>,
    hashes: Vec<u8>,
    n: i32,
    first_id: Uuid,
    last_id: Uuid,
}

impl SegmentBuilder {
    /// Adds a frame whose transaction id has the given hash.
    pub fn push(&mut self, frame: &Frame, hash: TxnHash) {
        if self.n == 0 {
            self.first_id = frame.message_id;
        }
        self.last_id = frame.message_id;
        self.n += 1;
        self.hashes.extend_from_slice(&hash.0);
        frame.encode(&mut self.raw);
    }

    /// Number of frames so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len() / 16
    }

    /// Whether no frame was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Size of the frames so far, bytes.
    #[must_use]
    pub fn raw_bytes(&self) -> usize {
        self.raw.len()
    }

    /// Compresses what was added.
    #[must_use]
    pub fn finish(self) -> Segment {
        debug_assert!(self.n > 0, "an empty segment has no first message");
        let raw_bytes = i32::try_from(self.raw.len()).expect("a segment is bounded");
        let mut payload = Vec::with_capacity(HEADER + self.raw.len() / 2);
        let packed = (self.raw.len() >= COMPRESS_FROM)
            .then(|| zstd::bulk::compress(&self.raw, LEVEL).ok())
            .flatten()
            .filter(|packed| packed.len() < self.raw.len());
        payload.push(FORMAT);
        payload.push(if packed.is_some() { ZSTD } else { PLAIN });
        payload.extend_from_slice(&raw_bytes.to_le_bytes());
        payload.extend_from_slice(packed.as_ref().unwrap_or(&self.raw));
        Segment {
            n: self.n,
            raw_bytes,
            first_id: self.first_id,
            last_id: self.last_id,
            hashes: self.hashes,
            payload,
        }
    }
}

/// Reads the frames of stored bytes; `n` is the number that the store says they hold.
///
/// # Errors
/// Any [`Error`] when the bytes were not written by [`SegmentBuilder::finish`] or were damaged.
pub fn decode(stored: &[u8], n: i32) -> Result<Vec<Frame>, Error> {
    let (header, body) =
        stored.split_at_checked(HEADER).ok_or(Error::Truncated("the segment header"))?;
    if header[0] != FORMAT {
        return Err(Error::Malformed("segment format"));
    }
    let size = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
    let size = usize::try_from(size).map_err(|_range| Error::Malformed("segment size"))?;
    if size > RAW_BYTES_MAX {
        return Err(Error::Malformed("segment size"));
    }
    let unpacked;
    let mut frames = match header[1] {
        PLAIN => body,
        ZSTD => {
            unpacked = zstd::bulk::decompress(body, size).map_err(Error::Decompress)?;
            unpacked.as_slice()
        }
        _ => return Err(Error::Malformed("segment codec")),
    };
    if frames.len() != size {
        return Err(Error::Malformed("segment size"));
    }
    let n = usize::try_from(n).map_err(|_sign| Error::Malformed("frame count"))?;
    let mut out = Vec::with_capacity(n.min(100_000));
    while !frames.is_empty() {
        out.push(Frame::decode(&mut frames)?);
    }
    if out.len() != n {
        return Err(Error::Malformed("frame count"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        (
            any::<u128>(),
            proptest::option::of(".{0,40}"),
            proptest::option::of(any::<u128>()),
            proptest::option::of(".{1,20}"),
            ".{0,200}",
        )
            .prop_map(|(id, txn, trace, sub, payload)| Frame {
                message_id: Uuid::from_u128(id),
                transaction_id: txn,
                trace_id: trace.map(Uuid::from_u128),
                producer_sub: sub,
                payload,
            })
    }

    fn build(frames: &[Frame]) -> Segment {
        let mut builder = SegmentBuilder::default();
        for f in frames {
            builder.push(f, TxnHash::of(&f.transaction_id()));
        }
        builder.finish()
    }

    proptest! {
        #[test]
        fn frames_come_back_as_they_went_in(frames in prop::collection::vec(frame(), 1..40)) {
            let segment = build(&frames);
            prop_assert_eq!(segment.hashes.len(), frames.len() * 16);
            prop_assert_eq!(decode(&segment.payload, segment.n).expect("decodes"), frames);
        }

        #[test]
        fn cut_segments_are_refused(
            frames in prop::collection::vec(frame(), 1..10), cut in any::<prop::sample::Index>()
        ) {
            let segment = build(&frames);
            let end = cut.index(segment.payload.len());
            prop_assert!(decode(&segment.payload[..end], segment.n).is_err());
        }

        #[test]
        fn a_wrong_count_is_refused(frames in prop::collection::vec(frame(), 1..10), by in 1..5) {
            let segment = build(&frames);
            prop_assert!(decode(&segment.payload, segment.n + by).is_err());
            prop_assert!(decode(&segment.payload, segment.n - by).is_err());
        }
    }

    #[test]
    fn large_frames_are_compressed() {
        let f = Frame {
            message_id: Uuid::from_u128(1),
            transaction_id: None,
            trace_id: None,
            producer_sub: None,
            payload: format!("\"{}\"", "a".repeat(100_000)),
        };
        let segment = build(&[f]);
        assert!(segment.payload.len() < 1_000);
    }
}
