//! A proxy before PostgreSQL that cuts connections, stalls them, and loses answers.
//!
//! It reads the frames of the protocol: an answer is lost only after the server has given it, so a
//! call whose answer is lost has taken effect.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;

use super::Database;

struct Shared {
    host: Host,
    port: u16,
    /// Connections of an older generation are cut.
    generation: watch::Sender<u64>,
    stalled: watch::Sender<bool>,
    closed: AtomicBool,
    lose: Mutex<Option<&'static str>>,
    lost: AtomicUsize,
}

/// A running proxy; it ends with the value.
pub(crate) struct Proxy {
    url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy before a test's database.
    pub(crate) async fn before(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let config = &database.config;
        let shared = Arc::new(Shared {
            host: config.get_hosts()[0].clone(),
            port: config.get_ports().first().copied().unwrap_or(5432),
            generation: watch::channel(0).0,
            stalled: watch::channel(false).0,
            closed: AtomicBool::new(false),
            lose: Mutex::default(),
            lost: AtomicUsize::new(0),
        });
        let user = config.get_user().unwrap_or("postgres");
        let name = config.get_dbname().expect("a database of the test");
        let url = format!("host=127.0.0.1 port={own} user='{user}' dbname='{name}'");
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { url, shared, accepting }
    }

    /// The database as seen through the proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Cuts every connection; new ones are taken.
    pub(crate) fn cut(&self) {
        self.shared.generation.send_modify(|generation| *generation += 1);
    }

    /// Passes nothing on while stalled, and breaks nothing.
    pub(crate) fn stall(&self, stalled: bool) {
        self.shared.stalled.send_replace(stalled);
    }

    /// An outage: every connection is cut and new ones end at once, until it is over.
    pub(crate) fn close(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::SeqCst);
        self.cut();
    }

    /// Loses the answer of the next call whose statement holds this text, with its connection.
    pub(crate) fn lose_answer(&self, of: &'static str) {
        *self.shared.lose.lock().expect("no holder panics") = Some(of);
    }

    /// Answers lost so far.
    pub(crate) fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.closed.load(Ordering::SeqCst) {
            continue;
        }
        let shared = Arc::clone(&shared);
        let mut generation = shared.generation.subscribe();
        generation.mark_unchanged();
        tokio::spawn(async move {
            tokio::select! {
                _ = connect(client, &shared) => {}
                _ = generation.changed() => {}
            }
        });
    }
}

async fn connect(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    match &shared.host {
        Host::Tcp(name) => {
            let server = TcpStream::connect((name.as_str(), shared.port)).await?;
            server.set_nodelay(true)?;
            relay(client, server, shared).await
        }
        Host::Unix(folder) => {
            let socket = folder.join(format!(".s.PGSQL.{}", shared.port));
            relay(client, UnixStream::connect(socket).await?, shared).await
        }
    }
}

/// Passes frames on in both directions until one side ends or an answer is lost.
async fn relay<S>(client: TcpStream, server: S, shared: &Shared) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(server);
    let (mut from_client, mut from_server) =
        (BufReader::new(from_client), BufReader::new(from_server));
    let (mut to_client, mut to_server) = (BufWriter::new(to_client), BufWriter::new(to_server));
    let losing = AtomicBool::new(false);
    let up = async {
        let mut statements = HashMap::new();
        // The start-up message alone has no type.
        let mut frame = read_frame(&mut from_client, 0).await?;
        loop {
            shared.flowing().await;
            if shared.wants(&frame, &mut statements) {
                losing.store(true, Ordering::SeqCst);
            }
            to_server.write_all(&frame).await?;
            if from_client.buffer().is_empty() {
                to_server.flush().await?;
            }
            frame = read_frame(&mut from_client, 1).await?;
        }
    };
    let down = async {
        loop {
            let frame = read_frame(&mut from_server, 1).await?;
            shared.flowing().await;
            if losing.load(Ordering::SeqCst) {
                // Ready for the next query: what was asked has taken effect.
                if frame[0] == b'Z' {
                    shared.lost.fetch_add(1, Ordering::SeqCst);
                    return Ok(());
                }
                continue;
            }
            to_client.write_all(&frame).await?;
            if from_server.buffer().is_empty() {
                to_client.flush().await?;
            }
        }
    };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// A whole frame: `head` bytes of type, a length that counts itself, the rest.
async fn read_frame(from: &mut (impl AsyncRead + Unpin), head: usize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; head + 4];
    from.read_exact(&mut frame).await?;
    let length = <[u8; 4]>::try_from(&frame[head..]).expect("four bytes");
    let length = usize::try_from(u32::from_be_bytes(length)).expect("64 bits");
    frame.resize(head + length.max(4), 0);
    from.read_exact(&mut frame[head + 4..]).await?;
    Ok(frame)
}

impl Shared {
    async fn flowing(&self) {
        let mut stalled = self.stalled.subscribe();
        // The sender lives as long as this.
        let _ = stalled.wait_for(|stalled| !stalled).await;
    }

    /// Whether the frame runs the statement whose answer is to be lost.
    fn wants(&self, frame: &[u8], statements: &mut HashMap<Vec<u8>, String>) -> bool {
        let mut texts = frame.get(5..).unwrap_or_default().split(|byte| *byte == 0);
        let first = texts.next().unwrap_or_default();
        let second = texts.next().unwrap_or_default();
        let text = match frame[0] {
            b'P' => {
                let text = String::from_utf8_lossy(second).into_owned();
                statements.insert(first.to_vec(), text);
                return false;
            }
            b'B' => statements.get(second).cloned().unwrap_or_default(),
            b'Q' => String::from_utf8_lossy(first).into_owned(),
            _ => return false,
        };
        let mut lose = self.lose.lock().expect("no holder panics");
        lose.take_if(|wanted| text.contains(*wanted)).is_some()
    }
}
