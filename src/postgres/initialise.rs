//! Making a data folder: in a temporary folder beside it, renamed when complete.

use std::fs::{self, File};
use std::path::Path;

use super::account::Account;
use super::error::last_lines;
use super::find::Binaries;
use super::{Error, ROLE};

/// Begins the names of data folders that are being made.
const MAKING: &str = "init-";

/// Makes `data` with `initdb`. A crash at any point leaves either no such folder or a whole one.
pub(super) async fn initialise(
    root: &Path,
    data: &Path,
    binaries: &Binaries,
    account: &Account,
) -> Result<(), Error> {
    if !account.has_passwd_entry {
        return Err(Error::NoPasswdEntry { uid: account.uid, data: data.to_owned() });
    }
    // Removed again when it is dropped on the way out.
    let making = tempfile::Builder::new()
        .prefix(MAKING)
        .tempdir_in(root)
        .map_err(|e| Error::io("cannot make a folder in", root, e))?;
    account.take_folder(making.path())?;
    let program = binaries.dir.join("initdb");
    let output = account
        .command(&program)
        .arg("-D")
        .arg(making.path())
        .args(["--username", ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .args(["--data-checksums", "--no-instructions"])
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| Error::io("cannot run", &program, e))?;
    if !output.status.success() {
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        return Err(Error::Initdb { status: output.status, output: last_lines(&said, 12) });
    }
    // initdb has synced its files; the names come last.
    fs::rename(making.path(), data).map_err(|e| Error::io("cannot rename a folder to", data, e))?;
    let _renamed = making.keep();
    File::open(root)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| Error::io("cannot sync the folder", root, e))
}

/// Removes data folders that were never finished; whatever resists is only reported.
pub(super) fn remove_unfinished(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(MAKING)) {
        let path = entry.path();
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(%error, path = %path.display(), "cannot remove an unfinished folder");
        }
    }
}
