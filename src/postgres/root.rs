//! The root folder of a cluster: making it, locking it, the place of the socket, the log file.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{User, geteuid};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::account::Account;
use super::error::last_lines;
use super::{Error, PORT, pidfile};

/// Longest path of a unix socket, in bytes without the end mark.
const SOCKET_PATH_BYTES_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };
/// Where short socket folders stand. Not the folder for temporary files of the environment, which
/// is long on macOS.
const SHORT_BASE: &str = "/tmp";
/// Size at which the log file is emptied, looked at before each start and then every minute.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// How long a lock is retried whose holder is dead or not named (yet): a process that was just
/// forked shares the lock until it becomes another program.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Gives the folder for the user's own files of one kind: root's, else by variable, else by custom.
pub(super) fn user_folder(as_root: &str, variable: &str, below_home: &str, macos: &str) -> PathBuf {
    const NAME: &str = "foldmq";
    if geteuid().is_root() {
        return Path::new(as_root).join(NAME);
    }
    if let Some(base) = env::var_os(variable).map(PathBuf::from).filter(|base| base.is_absolute()) {
        return base.join(NAME);
    }
    let home = env::var_os("HOME")
        .map(PathBuf::from)
        .or_else(|| User::from_uid(geteuid()).ok().flatten().map(|user| user.dir))
        .unwrap_or_default();
    home.join(if cfg!(target_os = "macos") { macos } else { below_home }).join(NAME)
}

/// Makes a folder with its parents, and returns its path, absolute and without links.
///
/// As root, what is made can be walked by every account whatever the umask; else it is private.
pub(super) fn make_folder(path: &Path) -> Result<PathBuf, Error> {
    const WHAT: &str = "cannot create the folder";
    let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
    let absolute = std::path::absolute(path).map_err(|e| Error::io(WHAT, path, e))?;
    let mut missing: Vec<&Path> = absolute.ancestors().take_while(|p| !p.exists()).collect();
    missing.reverse();
    for folder in missing {
        match DirBuilder::new().mode(mode).create(folder) {
            Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(mode))
                .map_err(|e| Error::io(WHAT, folder, e))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io(WHAT, folder, e)),
        }
    }
    absolute.canonicalize().map_err(|e| Error::io(WHAT, path, e))
}

/// The right to change what is in a root folder; one holder on the machine.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Takes the lock or says who holds it.
    pub(super) async fn take(root: &Path) -> Result<Self, Error> {
        let path = root.join("lock");
        let io = |e| Error::io("cannot lock", &path, e);
        // Opened close-on-exec, as the standard library does: a server must not keep the lock of a
        // broker that died.
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        let give_up = Instant::now() + LOCK_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(e)) => return Err(io(e)),
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim().parse::<i32>().ok().filter(|pid| *pid > 0);
            match holder {
                Some(pid) if pidfile::is_alive(pid) => {
                    let holder = format!("process {pid}");
                    return Err(Error::Locked { root: root.to_owned(), holder });
                }
                _ if Instant::now() >= give_up => {
                    let holder = "its process is not known".to_owned();
                    return Err(Error::Locked { root: root.to_owned(), holder });
                }
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
        file.set_len(0).map_err(io)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(io)?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocked by name rather than by closing: a process just forked may share the lock for a
        // moment. Emptied first, so that whoever is refused meanwhile tries again.
        let released = self.0.set_len(0).and_then(|()| self.0.unlock());
        if let Err(error) = released {
            tracing::warn!(%error, "cannot release the lock of the data folder");
        }
    }
}

/// Makes the folder for the socket: below the root or, if that path is too long, in a short place.
///
/// A path with a character that has a meaning in the server's list of folders counts as too long.
pub(super) fn socket_folder(root: &Path, account: &Account) -> Result<PathBuf, Error> {
    let beside = root.join("socket");
    let is_short = !is_good_socket_folder(&beside);
    let path = if is_short {
        let hash = hex::encode(Sha256::digest(root.as_os_str().as_encoded_bytes()));
        Path::new(SHORT_BASE).join(format!("foldmq-{}", &hash[..12]))
    } else {
        beside
    };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io("cannot create the socket folder", path, e));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&path).map_err(|e| Error::io("cannot read", &path, e))?;
    if !found.is_dir() {
        return Err(Error::SocketFolder { path, reason: "it is no folder" });
    }
    // The short place is open to everybody: whoever owns the folder could pose as the server.
    if is_short && found.uid() != account.uid && found.uid() != geteuid().as_raw() {
        return Err(Error::SocketFolder { path, reason: "it belongs to another account" });
    }
    account.take_folder(&path)?;
    Ok(path)
}

fn is_good_socket_folder(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@~= :".contains(byte);
    let length = socket_file(path).as_os_str().len();
    length <= SOCKET_PATH_BYTES_MAX && bytes.iter().all(plain)
}

fn socket_file(folder: &Path) -> PathBuf {
    folder.join(format!(".s.PGSQL.{PORT}"))
}

/// Removes what a killed server left in its socket folder, to be called while none runs.
///
/// The socket has a lock file of its own, and a pid in it that is in use again would prevent the
/// start just as the one in the data folder does.
pub(super) fn clear_socket(folder: &Path) {
    let socket = socket_file(folder);
    let lock = folder.join(format!(".s.PGSQL.{PORT}.lock"));
    for path in [socket, lock] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %path.display(), "cannot remove a stale socket");
            }
            _ => {}
        }
    }
}

/// Removes a socket folder in the short place; one below the root stays.
pub(super) fn leave_socket_folder(folder: &Path) {
    if folder.parent() == Some(Path::new(SHORT_BASE)) {
        // Not empty after a server that had to be killed; the next start uses it again.
        let _not_empty = fs::remove_dir(folder);
    }
}

/// The file that the server's messages go to.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) path: PathBuf,
}

impl Log {
    pub(super) fn new(root: &Path) -> Self {
        Self { path: root.join("postgres.log") }
    }

    /// Opens the file for appending, emptied if it is too large, and tells its present length.
    pub(super) fn open(&self) -> Result<(File, u64), Error> {
        self.bound();
        let io = |e| Error::io("cannot open", &self.path, e);
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        Ok((file, length))
    }

    /// Present length in bytes.
    pub(super) fn length(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Empties the file when it is too large; the server appends, so it may be running.
    pub(super) fn bound(&self) {
        let too_large = fs::metadata(&self.path).is_ok_and(|m| m.len() > LOG_BYTES_MAX);
        if too_large {
            tracing::warn!(path = %self.path.display(), "emptying the log of PostgreSQL");
            let emptied = File::options().write(true).open(&self.path).and_then(|f| f.set_len(0));
            if let Err(error) = emptied {
                tracing::warn!(%error, "cannot empty the log of PostgreSQL");
            }
        }
    }

    /// Quotes the last lines that were written since the file had `from` bytes.
    pub(super) fn tail(&self, from: u64) -> String {
        const BYTES: u64 = 8 << 10;
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(from.max(length.saturating_sub(BYTES)).min(length)))?;
            let mut bytes = Vec::new();
            file.take(BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().map_or_else(|error| format!("  (not readable: {error})"), |t| last_lines(&t, 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lock_names_its_holder_and_is_released() {
        let root = tempfile::tempdir().expect("temporary folder");
        let lock = Lock::take(root.path()).await.expect("free");
        let error = Lock::take(root.path()).await.expect_err("taken").to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        Lock::take(root.path()).await.expect("free again");
    }

    #[test]
    fn long_or_odd_socket_paths_are_avoided() {
        assert!(is_good_socket_folder(Path::new("/var/lib/foldmq/socket")));
        assert!(!is_good_socket_folder(Path::new("/a,b/socket")));
        let fits = SOCKET_PATH_BYTES_MAX - "/.s.PGSQL.5432".len();
        let path = format!("/{}", "x".repeat(fits - 1));
        assert!(is_good_socket_folder(Path::new(&path)));
        assert!(!is_good_socket_folder(Path::new(&format!("{path}x"))));
    }

    #[test]
    fn log_quotes_only_what_is_new_and_stays_bounded() {
        let root = tempfile::tempdir().expect("temporary folder");
        let log = Log::new(root.path());
        let (mut file, _) = log.open().expect("own folder");
        file.write_all(b"old\n").expect("room");
        let (mut file, from) = log.open().expect("own folder");
        file.write_all(b"new\n").expect("room");
        assert_eq!(log.tail(from), "  new");
        file.set_len(LOG_BYTES_MAX + 1).expect("sparse");
        assert_eq!(log.open().expect("own folder").1, 0);
    }
}
