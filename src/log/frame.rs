//! One message as bytes.
//!
//! Layout: flags (1), message id (16), then, each only if its flag is set: transaction id
//! (varint length, bytes), trace id (16), producer (varint length, bytes); last the payload
//! (varint length, bytes). A message without a transaction id of its own uses its message id.

use uuid::Uuid;

use super::Error;

const HAS_TRANSACTION_ID: u8 = 1;
const HAS_TRACE_ID: u8 = 2;
const HAS_PRODUCER: u8 = 4;
const KNOWN: u8 = HAS_TRANSACTION_ID | HAS_TRACE_ID | HAS_PRODUCER;

/// One message of a segment. The offset and the time of commit belong to the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The broker's id of the message.
    pub message_id: Uuid,
    /// The producer's id; `None` where it is the message id.
    pub transaction_id: Option<String>,
    /// Set by transactional pushes only.
    pub trace_id: Option<Uuid>,
    /// Subject of the token that pushed the message.
    pub producer_sub: Option<String>,
    /// JSON text, as received.
    pub payload: String,
}

impl Frame {
    /// The id that acks name: the producer's, else the message id.
    #[must_use]
    pub fn transaction_id(&self) -> String {
        self.transaction_id.clone().unwrap_or_else(|| self.message_id.to_string())
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut flags = 0;
        if self.transaction_id.is_some() {
            flags |= HAS_TRANSACTION_ID;
        }
        if self.trace_id.is_some() {
            flags |= HAS_TRACE_ID;
        }
        if self.producer_sub.is_some() {
            flags |= HAS_PRODUCER;
        }
        out.push(flags);
        out.extend_from_slice(self.message_id.as_bytes());
        if let Some(id) = &self.transaction_id {
            put_bytes(out, id.as_bytes());
        }
        if let Some(id) = &self.trace_id {
            out.extend_from_slice(id.as_bytes());
        }
        if let Some(sub) = &self.producer_sub {
            put_bytes(out, sub.as_bytes());
        }
        put_bytes(out, self.payload.as_bytes());
    }

    /// Reads one frame from the front of `bytes` and moves it past.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::Malformed`] naming the part.
    pub fn decode(bytes: &mut &[u8]) -> Result<Self, Error> {
        let flags = take(bytes, 1, "the flags of a frame")?[0];
        if flags & !KNOWN != 0 {
            return Err(Error::Malformed("frame flag"));
        }
        let message_id = take_uuid(bytes, "a message id")?;
        let transaction_id = if flags & HAS_TRANSACTION_ID != 0 {
            Some(take_text(bytes, "a transaction id")?)
        } else {
            None
        };
        let trace_id =
            if flags & HAS_TRACE_ID != 0 { Some(take_uuid(bytes, "a trace id")?) } else { None };
        let producer_sub =
            if flags & HAS_PRODUCER != 0 { Some(take_text(bytes, "a producer")?) } else { None };
        let payload = take_text(bytes, "a payload")?;
        Ok(Self { message_id, transaction_id, trace_id, producer_sub, payload })
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes.len();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).expect("seven bits") | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).expect("seven bits"));
    out.extend_from_slice(bytes);
}

fn take<'b>(bytes: &mut &'b [u8], n: usize, what: &'static str) -> Result<&'b [u8], Error> {
    let (head, tail) = bytes.split_at_checked(n).ok_or(Error::Truncated(what))?;
    *bytes = tail;
    Ok(head)
}

fn take_uuid(bytes: &mut &[u8], what: &'static str) -> Result<Uuid, Error> {
    let raw = take(bytes, 16, what)?;
    Uuid::from_slice(raw).map_err(|_length| Error::Truncated(what))
}

fn take_text(bytes: &mut &[u8], what: &'static str) -> Result<String, Error> {
    let mut length: usize = 0;
    for shift in (0..35).step_by(7) {
        let byte = take(bytes, 1, what)?[0];
        length |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            let raw = take(bytes, length, what)?;
            return String::from_utf8(raw.to_vec()).map_err(|_utf8| Error::Malformed(what));
        }
    }
    Err(Error::Malformed(what))
}
