//! `postmaster.pid`: who runs on a data folder, and ending a server that nobody owns any more.
//!
//! Only to be used while holding the lock of the root folder: then a server that still runs on the
//! data folder belongs to no living broker.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{sleep, timeout};

use super::Error;

/// What the first and the eighth line of the file say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PidFile {
    pub(super) pid: i32,
    /// Whether the server says that it takes connections. While it recovers it does not, although
    /// its socket is open.
    pub(super) ready: bool,
}

/// How long an orphan may take for its last checkpoint.
const ORPHAN_FAST: Duration = Duration::from_secs(60);
/// How long an orphan may take to quit at once.
const ORPHAN_QUIT: Duration = Duration::from_secs(10);

/// Reads the file of a data folder; nothing when it is missing or not (yet) complete.
pub(super) fn read(data: &Path) -> Option<PidFile> {
    parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)
}

fn parse(text: &str) -> Option<PidFile> {
    let mut lines = text.lines();
    // A stand-alone backend writes its pid negated.
    let pid = lines.next()?.trim().parse::<i32>().ok()?.checked_abs()?;
    let ready = lines.nth(6).is_some_and(|status| status.trim() == "ready");
    (pid > 0).then_some(PidFile { pid, ready })
}

/// Ends a server that still runs on `data`, and removes a file that names a foreign process.
///
/// PostgreSQL takes any living process with that number and the same user for a server and refuses
/// to start; in containers numbers repeat at every start. The file of a dead process stays:
/// PostgreSQL reads from it whether parts of the old server are still there.
pub(super) async fn take_over(data: &Path) -> Result<(), Error> {
    let Some(PidFile { pid, .. }) = read(data) else {
        return Ok(());
    };
    if !is_alive(pid) {
        return Ok(());
    }
    if !is_server_of(pid, data) {
        let path = data.join("postmaster.pid");
        tracing::warn!(pid, path = %path.display(), "removing the pid file of a foreign process");
        return match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("cannot remove the stale file", path, e))
            }
            _ => Ok(()),
        };
    }
    tracing::warn!(pid, data = %data.display(), "ending a PostgreSQL server of an earlier start");
    for (signal, patience) in [(Signal::SIGINT, ORPHAN_FAST), (Signal::SIGQUIT, ORPHAN_QUIT)] {
        match kill(Pid::from_raw(pid), signal) {
            Ok(()) => {}
            Err(Errno::ESRCH) => return Ok(()),
            Err(_refused) => break,
        }
        let gone = async {
            while is_alive(pid) && is_server_of(pid, data) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        if timeout(patience, gone).await.is_ok() {
            return Ok(());
        }
    }
    Err(Error::OrphanStays { pid, data: data.to_owned() })
}

/// Whether a process with that number exists, whoever owns it.
pub(super) fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

/// Whether the process is a server on this very folder: by its arguments, else its working folder.
///
/// A zombie has neither and counts as foreign.
#[cfg(target_os = "linux")]
fn is_server_of(pid: i32, data: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;

    let wanted = data.as_os_str().as_bytes();
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let named = arguments
        .split(|byte| *byte == 0)
        .any(|argument| argument.strip_prefix(b"-D").unwrap_or(argument) == wanted);
    // A server changes into its data folder. The link can be read for one's own processes only.
    let stands_there = || {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data)
            && fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| exe.as_os_str().as_bytes().ends_with(b"/postgres"))
    };
    named || stands_there()
}

#[cfg(not(target_os = "linux"))]
fn is_server_of(pid: i32, data: &Path) -> bool {
    // There is no /proc. The arguments come joined by blanks, so a longer folder name must not
    // match: what follows has to be a blank or the end.
    let wanted = data.to_string_lossy();
    std::process::Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .is_ok_and(|output| {
            let line = String::from_utf8_lossy(&output.stdout).into_owned();
            line.match_indices(&*wanted).any(|(at, found)| {
                line[at + found.len()..].chars().next().is_none_or(char::is_whitespace)
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_and_state_are_read() {
        let text = "4711\n/data\n1700000000\n5432\n/socket\n\n  123  456\nready   \n";
        assert_eq!(parse(text), Some(PidFile { pid: 4711, ready: true }));
        let text = text.replace("ready   ", "starting");
        assert_eq!(parse(&text), Some(PidFile { pid: 4711, ready: false }));
        assert_eq!(parse("4711\n/data\n"), Some(PidFile { pid: 4711, ready: false }));
        assert_eq!(parse("-4711\n"), Some(PidFile { pid: 4711, ready: false }));
        for broken in ["", "\n", "x\n", "0\n", "-2147483648\n"] {
            assert_eq!(parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn this_test_is_no_server() {
        let own = i32::try_from(std::process::id()).expect("pids are positive and small");
        assert!(is_alive(own));
        assert!(!is_server_of(own, Path::new("/nowhere")));
    }
}
