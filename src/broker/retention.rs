//! Messages leave by age: retention, completed retention, eviction (control-plane section 17).

use std::time::Duration;

use super::Broker;

/// Segments of one statement: pushes never wait long for a deletion.
const BATCH: i64 = 1_000;

impl Broker {
    /// Removes what is given up, at every interval, until the broker stops.
    ///
    /// Every broker does so; a segment that two of them want is deleted by one.
    pub(super) async fn retention_loop(self, every: Duration) {
        let inner = &self.inner;
        let gauge = inner.metrics.loops.with_label_values(&["retention"]);
        gauge.set(1);
        loop {
            tokio::select! {
                () = inner.stop.cancelled() => break,
                () = tokio::time::sleep(every) => {}
            }
            loop {
                match inner.db.retention(BATCH).await {
                    Ok((segments, messages)) => {
                        let messages = u64::try_from(messages).unwrap_or_default();
                        inner.metrics.removed.inc_by(messages);
                        if i64::try_from(segments).is_ok_and(|n| n < BATCH)
                            || inner.stop.is_cancelled()
                        {
                            break;
                        }
                    }
                    Err(cause) => {
                        tracing::debug!(%cause, "retention put off");
                        break;
                    }
                }
            }
        }
        gauge.set(0);
    }
}
