//! What can go wrong with a private cluster, in words for the person who started it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why a private cluster could not be started or stopped.
///
/// Each text says what happened, where, and what to do. A text does not contain its source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what} {path}", path = path.display())]
    Io {
        /// Begins the sentence that `path` ends.
        what: &'static str,
        /// File or folder concerned.
        path: PathBuf,
        /// Reason given by the operating system.
        source: io::Error,
    },
    /// Started as root, and there is no account to step down to.
    #[error(
        "PostgreSQL refuses to run as root, and there is no account \"postgres\" or \"nobody\"; \
         create one, name another account, or start the broker as an ordinary user"
    )]
    NoAccount,
    /// The account asked for cannot be used.
    #[error("cannot run PostgreSQL as \"{user}\": {reason}")]
    BadAccount {
        /// Account as it was given.
        user: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The account that runs the server cannot walk to a folder that it needs.
    #[error(
        "PostgreSQL runs as account \"{account}\", which cannot reach {path}: the folder {folder} \
         is closed to it; allow it with `chmod o+x {folder}` or choose another place \
         (as root /var/lib/foldmq is a good one)",
        path = path.display(), folder = folder.display()
    )]
    Unreachable {
        /// Account that runs the server.
        account: String,
        /// What the account has to reach.
        path: PathBuf,
        /// First folder on the way that it may not enter.
        folder: PathBuf,
    },
    /// The user id has no entry in the password file, which `initdb` insists on.
    #[error(
        "user id {uid} has no passwd entry, and initdb refuses to make a data folder without one; \
         add a line to /etc/passwd (in a container: run as a user that the image knows), or start \
         once as a known user and keep {data}",
        data = data.display()
    )]
    NoPasswdEntry {
        /// Effective user id.
        uid: u32,
        /// Data folder that would have been made.
        data: PathBuf,
    },
    /// Another broker uses the folder.
    #[error(
        "{root} is in use by another broker ({holder}); stop it or choose another data folder",
        root = root.display()
    )]
    Locked {
        /// Root folder of the cluster.
        root: PathBuf,
        /// `process 123`, as far as the lock file tells.
        holder: String,
    },
    /// The data folder belongs to another account than the server would run as.
    #[error(
        "{data} belongs to user id {owner}, but PostgreSQL would run as \"{account}\"; start as \
         that owner, or give the folder away with `chown -R`",
        data = data.display()
    )]
    ForeignOwner {
        /// Data folder.
        data: PathBuf,
        /// User id that owns it.
        owner: u32,
        /// Account that the server would run as.
        account: String,
    },
    /// The data folder has content, but it is no database cluster.
    #[error(
        "{data} is not empty and has no readable PG_VERSION, so it is no PostgreSQL data folder; \
         nothing was changed in it: move it away or choose another data folder",
        data = data.display()
    )]
    NotACluster {
        /// Data folder.
        data: PathBuf,
    },
    /// No usable server binaries were found, and none could be fetched.
    #[error(
        "no PostgreSQL server binaries (14 or newer) were found; looked in: {looked}.\n\
         Fetching them failed too: {fetch}.\n\
         Do one of: {install}; set FOLDMQ_PG_BIN to the folder with postgres and initdb; or give \
         the URL of a running PostgreSQL with --database-url"
    )]
    NoBinaries {
        /// Places, with the reason where something was there but of no use.
        looked: String,
        /// Why the pinned build could not be had.
        fetch: String,
        /// One command that installs PostgreSQL here.
        install: String,
    },
    /// The folder given for binaries is of no use.
    #[error(
        "the folder given for PostgreSQL binaries, {dir}, cannot be used: {reason}",
        dir = dir.display()
    )]
    BadBinDir {
        /// Folder that was given.
        dir: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The data folder was made by a major version that is not installed.
    #[error(
        "{data} was made by PostgreSQL {made_by}, and only that major version can open it; found \
         {found}. Do one of: {install}; set FOLDMQ_PG_BIN to the folder with its postgres; or \
         choose another data folder",
        data = data.display()
    )]
    WrongMajor {
        /// Data folder.
        data: PathBuf,
        /// Major version in its `PG_VERSION`.
        made_by: u32,
        /// Versions that are there, with their folders.
        found: String,
        /// One command that installs the version wanted.
        install: String,
    },
    /// `initdb` failed; nothing was left behind.
    #[error("initdb could not make a data folder ({status}); it said:\n{output}")]
    Initdb {
        /// How it ended.
        status: ExitStatus,
        /// Last lines of its output.
        output: String,
    },
    /// The socket folder cannot be trusted.
    #[error(
        "the socket folder {path} cannot be used: {reason}; remove it or choose a shorter data \
         folder",
        path = path.display()
    )]
    SocketFolder {
        /// Folder for the unix socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A server that an earlier broker left behind does not end.
    #[error(
        "a PostgreSQL server of an earlier start (process {pid}) still uses {data} and did not end \
         when asked; end it with `kill -INT {pid}` and start again",
        data = data.display()
    )]
    OrphanStays {
        /// Process id of that server.
        pid: i32,
        /// Data folder.
        data: PathBuf,
    },
    /// The server ended while it was starting.
    #[error(
        "PostgreSQL ended while starting ({status}); the last lines of {log}:\n{tail}",
        log = log.display()
    )]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// Log file of the server.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// The server did not become ready in time.
    #[error(
        "PostgreSQL was not ready after {seconds} s and was stopped; start again to go on with a \
         long recovery; the last lines of {log}:\n{tail}",
        log = log.display()
    )]
    NotReady {
        /// How long it was waited for.
        seconds: u64,
        /// Log file of the server.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// The server runs but refused a statement that prepares it.
    #[error("the private PostgreSQL refused a preparing statement")]
    Statement(#[source] tokio_postgres::Error),
    /// The server runs but does not answer a statement that prepares it.
    #[error("the private PostgreSQL did not answer within {seconds} s")]
    Unanswered {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The server did not end, whatever signal it got.
    #[error("PostgreSQL (process {pid}) did not end when asked; end it with `kill -QUIT {pid}`")]
    StopFailed {
        /// Process id of the server.
        pid: u32,
    },
    /// The thread that watches the server ended by itself.
    #[error("the thread that watches PostgreSQL ended unexpectedly; the log has the reason")]
    SupervisorLost,
}

impl Error {
    pub(super) fn io(what: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Io { what, path: path.as_ref().to_owned(), source }
    }
}

/// Shortens `text` to its last `lines` lines, each at most 300 characters.
pub(super) fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let kept = &all[all.len().saturating_sub(lines)..];
    let cut: Vec<String> = kept
        .iter()
        .map(|line| format!("  {}", line.chars().take(300).collect::<String>()))
        .collect();
    if cut.is_empty() { "  (nothing)".to_owned() } else { cut.join("\n") }
}
