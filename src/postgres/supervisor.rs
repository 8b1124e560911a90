//! The thread that owns the server: prepares, starts, watches, restarts, and stops it.
//!
//! It has its own runtime, so a busy broker never delays it, and file work may block it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::account::Account;
use super::find::{self, Binaries};
use super::root::{self, Lock};
use super::server::{Server, end};
use super::{Error, Options, fetch, initialise, install};

/// Pause before the first restart; it doubles up to the longest.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);
/// A server that was up for so long is restarted with the shortest pause again.
const STABLE: Duration = Duration::from_secs(30);
/// How often the size of the server's log is looked at.
const LOG_CHECK: Duration = Duration::from_secs(60);

/// What the handle tells about the cluster.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) root: PathBuf,
    /// The root as the user wrote it.
    pub(super) shown_dir: PathBuf,
    pub(super) socket_dir: PathBuf,
    pub(super) version: String,
    pub(super) fetched: bool,
    /// How long the first start took; nothing if the data folder was there already.
    pub(super) created_in: Option<Duration>,
}

/// Body of the thread; ends when `stop` is sent or dropped.
pub(super) fn run(
    options: &Options,
    started: oneshot::Sender<Result<Started, Error>>,
    mut stop: oneshot::Receiver<()>,
    server_pid: &AtomicU32,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            // Whoever waits for the answer may be gone; then nobody needs it.
            let _gone =
                started.send(Err(Error::io("cannot start a runtime for", "postgres", error)));
            return Ok(());
        }
    };
    runtime.block_on(async {
        let mut child = None;
        let prepared = tokio::select! {
            prepared = prepare(options, &mut child) => prepared,
            _ = &mut stop => return match child {
                Some(child) => end(child).await,
                None => Ok(()),
            },
        };
        match (prepared, child) {
            (Ok((server, info)), Some(child)) => {
                server_pid.store(child.id().unwrap_or(0), Ordering::Release);
                let _gone = started.send(Ok(info));
                let result = keep(&server, child, stop, server_pid).await;
                server_pid.store(0, Ordering::Release);
                result
            }
            (Ok(_), None) => Err(Error::SupervisorLost),
            (Err(error), child) => {
                let ended = match child {
                    Some(child) => end(child).await,
                    None => Ok(()),
                };
                let _gone = started.send(Err(error));
                ended
            }
        }
    })
}

/// Does all that comes before the cluster can be used.
async fn prepare(options: &Options, child: &mut Option<Child>) -> Result<(Server, Started), Error> {
    let begin = Instant::now();
    let wanted_root = std::path::absolute(&options.data_dir)
        .map_err(|e| Error::io("cannot find the folder", &options.data_dir, e))?;
    let account = Account::resolve(options.user.as_deref(), &wanted_root.join("data"))?;
    // Before anything is made, so that a refusal leaves no empty folders; then with links resolved.
    account.check_reach(&wanted_root)?;
    let root = root::make_folder(&wanted_root)?;
    account.check_reach(&root)?;
    let lock = Lock::take(&root).await?;
    let data = root.join("data");
    let made_by = find::made_by(&data)?;
    let binaries = choose(options, &data, made_by, &account).await?;
    initialise::remove_unfinished(&root);
    if made_by.is_none() {
        initialise::initialise(&root, &data, &binaries, &account).await?;
    }
    let server = Server::new(options, &root, data, binaries, account, lock).await?;
    server.boot(child).await?;
    let created_in = made_by.is_none().then(|| begin.elapsed());
    let info = Started {
        root,
        shown_dir: options.data_dir.clone(),
        socket_dir: server.socket_dir.clone(),
        version: server.binaries.version.clone(),
        fetched: server.binaries.fetched,
        created_in,
    };
    tracing::info!(
        version = info.version,
        account = server.account.name,
        binaries = %server.binaries.dir.display(),
        data = %server.data.display(),
        "private PostgreSQL is ready"
    );
    Ok((server, info))
}

/// Chooses binaries: of the major version that made the folder, else the first that are usable.
async fn choose(
    options: &Options,
    data: &Path,
    made_by: Option<u32>,
    account: &Account,
) -> Result<Binaries, Error> {
    let wrong_major = |made_by, usable: &[Binaries]| {
        let found: Vec<String> =
            usable.iter().map(|b| format!("{} in {}", b.version, b.dir.display())).collect();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        let install = install::command(Some(made_by));
        Error::WrongMajor { data: data.to_owned(), made_by, found, install }
    };
    let fits = |binaries: &Binaries| made_by.is_none_or(|major| major == binaries.major);
    if let Some(dir) = &options.bin_dir {
        // A folder that was named is an order: it is used or refused, never passed over.
        let dir = std::path::absolute(dir).unwrap_or_else(|_empty| dir.clone());
        let binaries = match Binaries::probe(&dir, account).await {
            Ok(binaries) => binaries,
            Err(reason) => return Err(Error::BadBinDir { dir, reason }),
        };
        return match made_by {
            Some(major) if major != binaries.major => Err(wrong_major(major, &[binaries])),
            _ => Ok(binaries),
        };
    }
    let found = find::search(&options.search, made_by, account).await;
    if let Some(binaries) = found.usable.iter().find(|binaries| fits(binaries)) {
        return Ok(binaries.clone());
    }
    let fetched = match (options.search.fetch, made_by) {
        (false, _) => Err("it was not asked for".to_owned()),
        (true, Some(major)) if major != fetch::MAJOR => {
            return Err(wrong_major(major, &found.usable));
        }
        (true, _) => fetch::fetch(options, account).await,
    };
    fetched.map_err(|fetch| match made_by {
        Some(major) if !found.usable.is_empty() => wrong_major(major, &found.usable),
        _ => Error::NoBinaries {
            looked: found.looked.join(", "),
            fetch,
            install: install::command(made_by),
        },
    })
}

/// Keeps the server running until `stop`.
async fn keep(
    server: &Server,
    first: Child,
    mut stop: oneshot::Receiver<()>,
    server_pid: &AtomicU32,
) -> Result<(), Error> {
    let mut child = first;
    let mut log_bytes = server.log.length();
    let mut back_off = BACK_OFF_MIN;
    loop {
        let since = Instant::now();
        let Some(status) = watch(server, &mut child, &mut stop).await else {
            return end(child).await;
        };
        server_pid.store(0, Ordering::Release);
        match status {
            Ok(status) => {
                let error = server.ended(status, log_bytes);
                tracing::error!(%error, "PostgreSQL ended by itself; it is started again");
            }
            Err(error) => tracing::error!(%error, "cannot watch PostgreSQL; it is started again"),
        }
        if since.elapsed() >= STABLE {
            back_off = BACK_OFF_MIN;
        }
        child = loop {
            tokio::select! {
                biased;
                _ = &mut stop => return Ok(()),
                () = sleep(back_off) => {}
            }
            back_off = (back_off * 2).min(BACK_OFF_MAX);
            match server.spawn().await {
                Ok((child, bytes)) => {
                    log_bytes = bytes;
                    break child;
                }
                Err(error) => tracing::error!(%error, "cannot start PostgreSQL again"),
            }
        };
        server_pid.store(child.id().unwrap_or(0), Ordering::Release);
    }
}

/// Waits for the exit of the server, and returns its status, or nothing when `stop` came first.
async fn watch(
    server: &Server,
    child: &mut Child,
    stop: &mut oneshot::Receiver<()>,
) -> Option<io::Result<ExitStatus>> {
    let mut log_check = interval(LOG_CHECK);
    log_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = &mut *stop => return None,
            status = child.wait() => return Some(status),
            _ = log_check.tick() => server.log.bound(),
        }
    }
}
