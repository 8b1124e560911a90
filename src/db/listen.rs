//! Wake-ups between brokers: LISTEN on one connection of its own, NOTIFY through the pool.
//!
//! A notification is a hint. Whoever waits for work also looks by itself now and then, so a lost
//! one costs time, never a message.

use std::future::poll_fn;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};
use tokio_util::sync::CancellationToken;

use super::{Db, Error};

/// Largest payload of one NOTIFY, bytes (PostgreSQL allows 7,999).
pub const PAYLOAD_BYTES_MAX: usize = 7_900;

/// What the listener hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The connection is up: notifications from now on are heard.
    Connected,
    /// The connection is gone: look often.
    Disconnected,
    /// Another broker (or this one) said this.
    Message(String),
}

impl Db {
    /// Tells all brokers of the database, this one included.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn notify(&self, payload: &str) -> Result<(), Error> {
        debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a notification is bounded");
        self.query(include_str!("sql/notify.sql"), &[&payload]).await.map(drop)
    }

    /// Listens until `stop`, connecting again with a growing delay.
    pub async fn listen(&self, heard: mpsc::Sender<Heard>, stop: CancellationToken) {
        let mut delay = Duration::from_millis(100);
        loop {
            let session = self.listen_once(&heard, &mut delay);
            tokio::select! {
                () = stop.cancelled() => return,
                ended = session => {
                    if let Err(cause) = ended {
                        tracing::debug!(%cause, "wake-up listener lost its connection");
                    }
                }
            }
            if heard.send(Heard::Disconnected).await.is_err() {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(delay) => {}
            }
            delay = (delay * 2).min(Duration::from_secs(2));
        }
    }

    async fn listen_once(
        &self,
        heard: &mpsc::Sender<Heard>,
        delay: &mut Duration,
    ) -> Result<(), Error> {
        let (client, mut connection) = self.config.postgres.connect(NoTls).await?;
        let (tx, mut rx) = mpsc::unbounded_channel();
        let drive = async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(n) = message?
                    && tx.send(n.payload().to_owned()).is_err()
                {
                    break;
                }
            }
            Ok::<(), Error>(())
        };
        let serve = async {
            client.batch_execute("listen foldmq").await?;
            *delay = Duration::from_millis(100);
            let _ = heard.send(Heard::Connected).await;
            loop {
                // A silent connection may be dead: ask now and then.
                match tokio::time::timeout(Duration::from_secs(10), rx.recv()).await {
                    Ok(Some(payload)) => {
                        if heard.send(Heard::Message(payload)).await.is_err() {
                            return Ok(());
                        }
                    }
                    Ok(None) => return Ok(()),
                    Err(_quiet) => {
                        let limit = Duration::from_secs(5);
                        tokio::time::timeout(limit, client.batch_execute("select 1"))
                            .await
                            .map_err(|_elapsed| Error::Timeout(limit.as_millis()))??;
                    }
                }
            }
        };
        tokio::select! {
            ended = drive => ended,
            ended = serve => ended,
        }
    }
}
