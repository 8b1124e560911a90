//! What is pushed: flights, each about 200 bytes of JSON.

use std::sync::Arc;

use anyhow::ensure;
use uuid::Uuid;

use crate::cli::feed::{self, Departure};
use crate::log::{Frame, Segment, SegmentBuilder};
use crate::types::id::TxnHash;

/// Different segments that are prepared of each size.
const PREPARED: usize = 64;

/// The example feed.
pub(super) struct Feed {
    departures: Vec<Departure>,
    /// Payloads in the order of the feed.
    pub(super) payloads: Arc<Vec<String>>,
}

impl Feed {
    /// Unpacks the feed.
    pub(super) fn open() -> anyhow::Result<Self> {
        let departures = feed::departures()?;
        ensure!(!departures.is_empty(), "the feed is empty");
        let payloads = departures.iter().map(|d| d.payload.get().to_owned()).collect();
        Ok(Self { departures, payloads: Arc::new(payloads) })
    }

    /// The first `n` departures as one airport's: (transaction id, payload), in event order.
    pub(super) fn lane(&self, name: &str, n: usize) -> Vec<(String, String)> {
        let renamed = |d: &Departure| {
            let (from, to) =
                (format!("\"origin\":\"{}\"", d.origin), format!("\"origin\":\"{name}\""));
            (d.id.clone(), d.payload.get().replacen(&from, &to, 1))
        };
        self.departures.iter().take(n).map(renamed).collect()
    }

    /// Messages of the feed.
    pub(super) fn len(&self) -> usize {
        self.departures.len()
    }

    /// Mean size of a payload, bytes.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(String::len).sum::<usize>() / self.payloads.len().max(1)
    }

    /// Segments of `n` messages each, as a broker would store pushes of that size.
    pub(super) fn segments(&self, n: usize) -> Arc<Vec<Segment>> {
        let mut payloads = self.payloads.iter().cycle();
        let segment = |_| {
            let mut builder = SegmentBuilder::default();
            for payload in payloads.by_ref().take(n) {
                let transaction_id = Uuid::now_v7().to_string();
                let hash = TxnHash::of(&transaction_id);
                let frame = Frame {
                    message_id: Uuid::now_v7(),
                    transaction_id: Some(transaction_id),
                    trace_id: None,
                    producer_sub: None,
                    payload: payload.clone(),
                };
                builder.push(&frame, hash);
            }
            builder.finish()
        };
        Arc::new((0..PREPARED).map(segment).collect())
    }
}

/// The body of a push of `items`: (transaction id, payload).
pub(super) fn push_body<'i>(
    body: &mut Vec<u8>,
    queue: &str,
    partition: &str,
    items: impl Iterator<Item = (impl AsRef<str>, &'i str)>,
) {
    body.clear();
    body.extend_from_slice(b"{\"items\":[");
    for (i, (id, payload)) in items.enumerate() {
        if i > 0 {
            body.push(b',');
        }
        for part in [
            "{\"queue\":\"",
            queue,
            "\",\"partition\":\"",
            partition,
            "\",\"transactionId\":\"",
            id.as_ref(),
            "\",\"payload\":",
            payload,
            "}",
        ] {
            body.extend_from_slice(part.as_bytes());
        }
    }
    body.extend_from_slice(b"]}");
}

/// Whether a push stored all of its `n` messages.
pub(super) fn all_queued(answer: &[u8], n: usize) -> anyhow::Result<()> {
    const MARK: &[u8] = b"\"status\":\"queued\"";
    let mut rest = answer;
    let mut found = 0;
    while let Some(at) = rest.iter().position(|b| *b == b's') {
        rest = &rest[at + 1..];
        found += usize::from(rest.starts_with(&MARK[2..]));
    }
    ensure!(found == n, "{found} of {n} messages were stored");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_holds_its_items_and_an_answer_is_counted() {
        let mut body = Vec::new();
        push_body(&mut body, "q", "p", [("a", "{}"), ("b", "1")].into_iter());
        let value: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(value["items"][1]["transactionId"], "b");
        assert_eq!(value["items"][1]["payload"], 1);
        let answer = br#"[{"status":"queued"},{"s":"s","status":"queued"}]"#;
        assert!(all_queued(answer, 2).is_ok() && all_queued(answer, 3).is_err());
    }
}
