//! A private PostgreSQL server: found or fetched, made once, run as a child, stopped in order.
//!
//! Owns everything below one folder, the *root*:
//!
//! | entry | what |
//! |---|---|
//! | `lock` | `flock` held for the life of the cluster; its text is the holder's pid |
//! | `data` | PostgreSQL's own data folder |
//! | `init-*` | a data folder being made; renamed to `data` when complete, else left-over |
//! | `socket` | the unix socket; a short folder below `/tmp` stands in if the path is too long |
//! | `postgres.log` | what the server said, bounded |
//!
//! It knows nothing of the broker's schema and opens no TCP port. Invariants:
//!
//! - Nothing below the root is changed without the lock.
//! - The server is spawned by one thread that lives as long as the cluster, because Linux ties the
//!   death signal of a child to the *thread* that made it.
//! - `fsync` and `full_page_writes` are never touched.
//! - Binaries of another major version never open a data folder.

mod account;
mod error;
mod fetch;
mod find;
mod initialise;
mod install;
mod pidfile;
mod root;
mod server;
mod settings;
mod supervisor;
mod unzip;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

pub use error::Error;
pub use find::Search;
use supervisor::Started;

/// Superuser of the cluster and the role that the broker connects as.
const ROLE: &str = "foldmq";
/// Database that the broker uses; created when it is missing.
const DATABASE: &str = "foldmq";
/// Only names the socket file, since no TCP port is opened.
const PORT: u16 = 5432;

/// How a private cluster is found, made and run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Root folder of the cluster; created when missing.
    pub data_dir: PathBuf,
    /// Folder that holds `postgres` and `initdb`. When given, no other is used.
    pub bin_dir: Option<PathBuf>,
    /// Where fetched binaries are kept; by default the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Account to run the server as, a name or a number. Only root may name another than itself;
    /// by default root takes the owner of an existing data folder, else `postgres`, else `nobody`.
    pub user: Option<String>,
    /// PostgreSQL's `max_connections`, at least 10 in use; 100 by default.
    pub max_connections: u32,
    /// Where server binaries are looked for when `bin_dir` is absent.
    pub search: Search,
}

impl Options {
    /// Gives the defaults for a cluster in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            bin_dir: None,
            cache_dir: None,
            user: None,
            max_connections: 100,
            search: Search::system(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(default_data_dir())
    }
}

/// Returns the root folder used when none is given.
///
/// Root gets `/var/lib/foldmq`, because an unprivileged account must be able to walk there. Others
/// get `foldmq` in their data folder, which follows `XDG_DATA_HOME` or the custom of macOS.
pub fn default_data_dir() -> PathBuf {
    root::user_folder("/var/lib", "XDG_DATA_HOME", ".local/share", "Library/Application Support")
}

/// A running private PostgreSQL server.
///
/// Dropping it stops the server as [`stop`](Self::stop) does, but blocks the thread meanwhile.
#[derive(Debug)]
pub struct PrivateCluster {
    started: Started,
    server_pid: Arc<AtomicU32>,
    /// Sending or dropping it ends the supervisor.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl PrivateCluster {
    /// Starts the cluster and waits until a query works.
    ///
    /// Takes the lock of the folder, finds or fetches binaries, makes the data folder if there is
    /// none, ends a server that an earlier broker left behind, and starts its own. A server that
    /// dies later is started again, with back-off, until [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// Each variant of [`Error`] says what happened, where it was looked, and what to do.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let (started_tx, started) = oneshot::channel();
        let (stop_tx, stop) = oneshot::channel();
        let server_pid = Arc::new(AtomicU32::new(0));
        let pid = Arc::clone(&server_pid);
        let thread = std::thread::Builder::new()
            .name("postgres-supervisor".to_owned())
            .spawn(move || supervisor::run(&options, started_tx, stop, &pid))
            .map_err(|e| Error::io("cannot start a thread for", "PostgreSQL", e))?;
        // When this future is dropped here, the supervisor sees the closed channel and stops.
        let started = started.await.map_err(|_closed| Error::SupervisorLost)??;
        Ok(Self { started, server_pid, stop: Some(stop_tx), thread: Some(thread) })
    }

    /// Returns how to connect: unix socket, role and database `foldmq`, connect time-out of 5 s.
    pub fn config(&self) -> tokio_postgres::Config {
        server::config(&self.started.socket_dir, DATABASE)
    }

    /// Returns a connection URL in libpq's form, for `psql` and the like.
    pub fn url(&self) -> String {
        let mut host = String::new();
        for byte in self.started.socket_dir.as_os_str().as_encoded_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                    host.push(char::from(*byte));
                }
                other => host.push_str(&format!("%{other:02X}")),
            }
        }
        format!("postgresql://{ROLE}@/{DATABASE}?host={host}&port={PORT}")
    }

    /// Returns one line for the user, like `private PostgreSQL 15.20 in ./data (created in 1.2 s)`.
    pub fn description(&self) -> String {
        let Started { version, fetched, shown_dir, created_in, .. } = &self.started;
        let origin = if *fetched { " (fetched)" } else { "" };
        let created = created_in.map(seconds).unwrap_or_default();
        format!("private PostgreSQL {version}{origin} in {}{created}", shown_dir.display())
    }

    /// Returns the root folder, absolute and with links resolved.
    pub fn data_dir(&self) -> &Path {
        &self.started.root
    }

    /// Returns the process id of the server, or nothing while it is being restarted.
    pub fn server_pid(&self) -> Option<u32> {
        Some(self.server_pid.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    /// Stops the server, waits for its exit, and releases the folder.
    ///
    /// Open transactions are rolled back. The server gets 60 s to write its last checkpoint; then
    /// it is made to quit, which loses nothing either but makes the next start recover.
    ///
    /// # Errors
    ///
    /// [`Error::StopFailed`] when the process outlives both signals.
    pub async fn stop(mut self) -> Result<(), Error> {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        tokio::task::spawn_blocking(move || join(thread))
            .await
            .map_err(|_panicked| Error::SupervisorLost)?
    }
}

impl Drop for PrivateCluster {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && let Err(error) = join(thread)
        {
            tracing::error!(%error, "the private PostgreSQL did not stop in order");
        }
    }
}

fn join(thread: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    thread.join().map_err(|_panic| Error::SupervisorLost)?
}

fn seconds(time: Duration) -> String {
    format!(" (created in {:.1} s)", time.as_secs_f64())
}
