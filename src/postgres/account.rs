//! The account that PostgreSQL runs as, and commands that run as it.
//!
//! PostgreSQL refuses root. When the broker is root, every PostgreSQL program is started as an
//! unprivileged account; otherwise as the broker's own user. Access lists beyond the mode bits are
//! not looked at.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use nix::unistd::{Gid, Uid, User, getegid, geteuid};
use tokio::process::Command;

use super::Error;

/// Who runs the server.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: u32,
    gid: u32,
    /// Whether the broker has to step down to it.
    switch: bool,
    /// Whether the password file knows it; `initdb` needs that, `postgres` does not.
    pub(super) has_passwd_entry: bool,
}

impl Account {
    /// Chooses the account: as asked, else the owner of `data`, else `postgres`, else `nobody`.
    pub(super) fn resolve(asked: Option<&str>, data: &Path) -> Result<Self, Error> {
        let me = geteuid();
        let asked_account = asked.map(look_up).transpose()?;
        if !me.is_root() {
            let own = by_uid(me, Some(getegid()));
            return match (asked, asked_account) {
                (Some(user), Some(other)) if other.uid != me.as_raw() => Err(Error::BadAccount {
                    user: user.to_owned(),
                    reason: "only root can start programs as another account",
                }),
                _ => Ok(own),
            };
        }
        let owner = fs::metadata(data).ok().map(|m| m.uid()).filter(|uid| *uid != 0);
        let account = match (asked_account, owner) {
            (Some(account), Some(owner)) if account.uid != owner => {
                return Err(Error::ForeignOwner {
                    data: data.to_owned(),
                    owner,
                    account: account.name,
                });
            }
            (Some(account), _) => account,
            (None, Some(owner)) => by_uid(Uid::from_raw(owner), None),
            (None, None) => ["postgres", "nobody"]
                .into_iter()
                .find_map(|name| look_up(name).ok())
                .ok_or(Error::NoAccount)?,
        };
        Ok(Self { switch: true, ..account })
    }

    /// Prepares `program` to run as this account, with a clean environment.
    ///
    /// Nothing of the broker's environment reaches it, so that no `PG*`, `LC_*` or `LD_*` setting
    /// changes what it does and no secret shows in `/proc`. It has its own process group, so that
    /// Ctrl-C on the terminal reaches only the broker, which then stops things in order. On Linux
    /// it gets SIGINT when the calling *thread* ends.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            // Older versions fail when the account cannot read the working folder.
            .current_dir("/")
            .stdin(std::process::Stdio::null())
            .process_group(0);
        if self.switch {
            // The standard library clears the supplementary groups when root sets a uid.
            command.uid(self.uid).gid(self.gid);
        }
        #[cfg(target_os = "linux")]
        die_with_this_thread(&mut command);
        command
    }

    /// Checks that the account may walk to `path`, which may not exist yet.
    pub(super) fn check_reach(&self, path: &Path) -> Result<(), Error> {
        if !self.switch {
            return Ok(());
        }
        let mut folders: Vec<&Path> = path.ancestors().collect();
        folders.reverse();
        for folder in folders {
            let Ok(metadata) = fs::metadata(folder) else {
                return Ok(());
            };
            let bit = match () {
                () if metadata.uid() == self.uid => 0o100,
                () if metadata.gid() == self.gid => 0o010,
                () => 0o001,
            };
            if metadata.is_dir() && metadata.mode() & bit == 0 {
                return Err(Error::Unreachable {
                    account: self.name.clone(),
                    path: path.to_owned(),
                    folder: folder.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Gives the folder to the account, closed to everybody else.
    pub(super) fn take_folder(&self, path: &Path) -> Result<(), Error> {
        if self.switch {
            chown(path, Some(self.uid), Some(self.gid))
                .map_err(|e| Error::io("cannot give away the folder", path, e))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
            .map_err(|e| Error::io("cannot set the mode of the folder", path, e))
    }
}

/// Makes the kernel send SIGINT to the child when the thread that starts it ends.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the death signal can only be set between fork and exec")]
fn die_with_this_thread(command: &mut Command) {
    use nix::errno::Errno;
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;
    use nix::unistd::{Pid, getpid, getppid};

    let parent: Pid = getpid();
    let before_exec = move || {
        set_pdeathsig(Signal::SIGINT)?;
        // The parent may have died before the line above; then no signal comes any more.
        if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: the closure runs in the forked child, after the change of uid (which would clear the
    // setting). It only makes two system calls, takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Finds an unprivileged account by its name or number.
fn look_up(user: &str) -> Result<Account, Error> {
    let bad = |reason| Error::BadAccount { user: user.to_owned(), reason };
    let account = match (User::from_name(user), user.parse::<u32>()) {
        (Ok(Some(entry)), _) => Account {
            name: entry.name,
            uid: entry.uid.as_raw(),
            gid: entry.gid.as_raw(),
            switch: false,
            has_passwd_entry: true,
        },
        (_, Ok(uid)) => by_uid(Uid::from_raw(uid), None),
        _ => return Err(bad("there is no such account")),
    };
    if account.uid == 0 { Err(bad("PostgreSQL refuses to run as root")) } else { Ok(account) }
}

/// Describes a user id, with its own number as group when neither `gid` nor an entry tells one.
fn by_uid(uid: Uid, gid: Option<Gid>) -> Account {
    let entry = User::from_uid(uid).ok().flatten();
    let raw = uid.as_raw();
    Account {
        name: entry.as_ref().map_or_else(|| raw.to_string(), |e| e.name.clone()),
        uid: raw,
        gid: gid.or_else(|| entry.as_ref().map(|e| e.gid)).map_or(raw, Gid::as_raw),
        switch: false,
        has_passwd_entry: entry.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_nonsense_are_told_apart() {
        assert!(!look_up("4000000001").expect("a number is an account").has_passwd_entry);
        let error = look_up("no such user").expect_err("there is none");
        assert!(error.to_string().contains("no such user"), "{error}");
        let error = look_up("root").expect_err("root is refused");
        assert!(error.to_string().contains("refuses to run as root"), "{error}");
    }

    #[test]
    fn closed_folder_on_the_way_is_named() {
        let outer = tempfile::tempdir().expect("temporary folder");
        let set = |mode| fs::set_permissions(outer.path(), fs::Permissions::from_mode(mode));
        set(0o700).expect("own folder");
        let account = Account { switch: true, ..by_uid(Uid::from_raw(4_000_000_001), None) };
        let error = account.check_reach(&outer.path().join("a/b")).expect_err("mode is 0700");
        assert!(error.to_string().contains(&format!("{}", outer.path().display())), "{error}");
        set(0o711).expect("own folder");
        account.check_reach(&outer.path().join("a/b")).expect("can be walked now");
    }
}
