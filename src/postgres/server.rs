//! The server process: spawning it, seeing that it is ready, ending it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

use super::account::Account;
use super::find::{Binaries, ask};
use super::root::{self, Lock, Log};
use super::{DATABASE, Error, Options, PORT, ROLE, pidfile, settings};

/// How long a statement that prepares the server may take.
const STATEMENT_PATIENCE: Duration = Duration::from_secs(30);
/// How long the recovery of a crashed server may take.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// How long an orderly end may take, which includes a checkpoint.
const STOP_FAST: Duration = Duration::from_secs(60);
/// How long an immediate end may take; the server itself kills its children after 5 s.
const STOP_QUIT: Duration = Duration::from_secs(15);
/// Pauses before trying again when parts of a killed server are still going away.
const RETRY_PAUSES_MS: [u64; 6] = [50, 100, 200, 400, 800, 1600];

/// All that is needed to spawn the server, as often as needed.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) binaries: Binaries,
    pub(super) account: Account,
    pub(super) data: PathBuf,
    pub(super) socket_dir: PathBuf,
    pub(super) log: Log,
    arguments: Vec<std::ffi::OsString>,
    /// Released last, when no server runs any more.
    _lock: Lock,
}

/// How to connect to `database` of the server behind a socket folder.
pub(super) fn config(socket_dir: &Path, database: &str) -> Config {
    let mut config = Config::new();
    config
        .host_path(socket_dir)
        .port(PORT)
        .user(ROLE)
        .dbname(database)
        .application_name("foldmq")
        .connect_timeout(Duration::from_secs(5));
    config
}

impl Server {
    pub(super) async fn new(
        options: &Options,
        root: &Path,
        data: PathBuf,
        binaries: Binaries,
        account: Account,
        lock: Lock,
    ) -> Result<Self, Error> {
        let socket_dir = root::socket_folder(root, &account)?;
        // Version 14 and some builds know no lz4; the server says so without being started.
        let mut probe = account.command(binaries.dir.join("postgres"));
        probe.arg("-D").arg(&data).args(["-c", "wal_compression=lz4", "-C", "wal_compression"]);
        let has_lz4 = ask(&mut probe).await.is_ok_and(|told| told.trim() == "lz4");
        let arguments = settings::arguments(&data, &socket_dir, options.max_connections, has_lz4);
        let log = Log::new(root);
        Ok(Self { binaries, account, data, socket_dir, log, arguments, _lock: lock })
    }

    /// Spawns the server, after whatever an earlier one left was cleared.
    ///
    /// Returns the child and the length that the log had, for quoting what it says from now on.
    pub(super) async fn spawn(&self) -> Result<(Child, u64), Error> {
        pidfile::take_over(&self.data).await?;
        root::clear_socket(&self.socket_dir);
        let (log, log_bytes) = self.log.open()?;
        let program = self.binaries.dir.join("postgres");
        let io = |e| Error::io("cannot run", &program, e);
        let same: File = log.try_clone().map_err(io)?;
        let mut command: Command = self.account.command(&program);
        command.args(&self.arguments).stdout(Stdio::from(log)).stderr(Stdio::from(same));
        Ok((command.spawn().map_err(io)?, log_bytes))
    }

    /// Starts the server, waits until it is ready, and sees that the database is there.
    ///
    /// The child is kept in `slot` from the first moment, so that it can be ended when the caller
    /// drops this future.
    pub(super) async fn boot(&self, slot: &mut Option<Child>) -> Result<(), Error> {
        let mut unclean = self.has_pid_file();
        let mut pauses = RETRY_PAUSES_MS.iter();
        loop {
            let (child, log_bytes) = self.spawn().await?;
            let child = slot.insert(child);
            let pid = child.id();
            let status = tokio::select! {
                () = self.ready(pid) => break,
                status = child.wait() => status,
                () = sleep(START_PATIENCE) => return self.give_up(slot, log_bytes).await,
            };
            let status = status.map_err(|e| Error::io("cannot watch", "postgres", e))?;
            unclean |= self.has_pid_file();
            // The children of a killed server need a moment to notice, and until then PostgreSQL
            // refuses to start beside them.
            match pauses.next().filter(|_| unclean) {
                Some(pause) => sleep(Duration::from_millis(*pause)).await,
                None => return Err(self.ended(status, log_bytes)),
            }
        }
        self.create_database().await
    }

    fn has_pid_file(&self) -> bool {
        self.data.join("postmaster.pid").exists()
    }

    async fn give_up(&self, slot: &mut Option<Child>, log_bytes: u64) -> Result<(), Error> {
        if let Some(child) = slot.take() {
            end(child).await?;
        }
        Err(Error::NotReady {
            seconds: START_PATIENCE.as_secs(),
            log: self.log.path.clone(),
            tail: self.log.tail(log_bytes),
        })
    }

    pub(super) fn ended(&self, status: ExitStatus, log_bytes: u64) -> Error {
        Error::Ended { status, log: self.log.path.clone(), tail: self.log.tail(log_bytes) }
    }

    /// Waits until the server with this pid says that it is ready **and** answers a query.
    ///
    /// Its socket alone means nothing: it is open while the server still recovers.
    pub(super) async fn ready(&self, pid: Option<u32>) {
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        let config = config(&self.socket_dir, "postgres");
        loop {
            let said = pidfile::read(&self.data);
            let is_ready = said.is_some_and(|file| file.ready && Some(file.pid) == pid);
            if is_ready && statement(&config, "select 1").await.is_ok() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Creates the database if it is missing, at every start, as the first one may have been cut.
    async fn create_database(&self) -> Result<(), Error> {
        let config = config(&self.socket_dir, "postgres");
        let query = format!("select 1 from pg_database where datname = '{DATABASE}'");
        let rows = statement(&config, &query).await?;
        if !rows.iter().any(|message| matches!(message, SimpleQueryMessage::Row(_))) {
            statement(&config, &format!("create database {DATABASE}")).await?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        root::leave_socket_folder(&self.socket_dir);
    }
}

/// Ends the server in order: fast first, at once if that takes too long, never by SIGKILL.
pub(super) async fn end(mut child: Child) -> Result<(), Error> {
    for (signal, patience) in [(Signal::SIGINT, STOP_FAST), (Signal::SIGQUIT, STOP_QUIT)] {
        // The id is gone once the exit was seen, so no other process can be hit.
        let Some(pid) = child.id() else { return Ok(()) };
        if let Ok(raw) = i32::try_from(pid)
            && let Err(error) = kill(Pid::from_raw(raw), signal)
        {
            tracing::warn!(%error, pid, "cannot signal PostgreSQL");
        }
        match timeout(patience, child.wait()).await {
            Ok(_exited) => return Ok(()),
            Err(_elapsed) => tracing::warn!(pid, %signal, "PostgreSQL does not end"),
        }
    }
    child.id().map_or(Ok(()), |pid| Err(Error::StopFailed { pid }))
}

/// Runs one statement on a connection of its own.
async fn statement(config: &Config, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
    let run = async {
        let (client, connection) = config.connect(NoTls).await?;
        tokio::pin!(connection);
        tokio::select! {
            answer = client.simple_query(sql) => answer,
            Err(error) = connection.as_mut() => Err(error),
        }
    };
    match timeout(STATEMENT_PATIENCE, run).await {
        Ok(answer) => answer.map_err(Error::Statement),
        Err(_elapsed) => Err(Error::Unanswered { seconds: STATEMENT_PATIENCE.as_secs() }),
    }
}
