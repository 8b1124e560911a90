//! A lean HTTP client: one connection, one request at a time.
//!
//! The machine is shared by client, broker and database, so what the client costs is taken from
//! what it measures. It knows just enough of HTTP for the broker's own answers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes within which the head of an answer must end.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A connection to the broker.
pub(super) struct Wire {
    stream: TcpStream,
    host: String,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

/// Status and body of an answer.
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

impl Answer<'_> {
    /// The body of an answer that must have this status.
    pub(super) fn expect(&self, status: u16) -> anyhow::Result<&[u8]> {
        let shown = || String::from_utf8_lossy(&self.body[..self.body.len().min(500)]);
        ensure!(self.status == status, "answered {}, not {status}: {}", self.status, shown());
        Ok(self.body)
    }
}

impl Wire {
    /// Connects.
    pub(super) async fn open(addr: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(addr).await.context("cannot connect to the broker")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, host: addr.to_string(), out: Vec::new(), buffer: Vec::new() })
    }

    /// Sends a request and reads its answer.
    pub(super) async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<Answer<'_>> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        self.out.clear();
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body);
        let exchange = async {
            self.stream.write_all(&self.out).await?;
            self.answer().await
        };
        let (status, start) = tokio::time::timeout(PATIENCE, exchange)
            .await
            .with_context(|| format!("{path}: no answer"))?
            .with_context(|| format!("{method} {path}"))?;
        Ok(Answer { status, body: &self.buffer[start..] })
    }

    /// Sends JSON, wants 200, reads JSON.
    pub(super) async fn json(
        &mut self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<Value> {
        let body = serde_json::to_vec(body)?;
        let answer = self.call(method, path, &body).await?;
        let body = answer.expect(200).with_context(|| format!("{method} {path}"))?;
        Ok(serde_json::from_slice(body)?)
    }

    /// Reads one answer: its status, and where its body begins in the buffer.
    async fn answer(&mut self) -> anyhow::Result<(u16, usize)> {
        self.buffer.clear();
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(self.buffer.len() < HEAD_BYTES_MAX, "the head of the answer does not end");
            self.more().await?;
        };
        let head = std::str::from_utf8(&self.buffer[..end])?;
        let status = head.get(9..12).context("no status")?.parse().context("status")?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
        });
        let length = match length {
            Some(length) => length?,
            None if status == 204 => 0,
            None => bail!("an answer without a length"),
        };
        while self.buffer.len() < end + length {
            self.more().await?;
        }
        Ok((status, end))
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        self.buffer.reserve(64 * 1024);
        let n = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(n > 0, "the broker closed the connection");
        Ok(())
    }
}
