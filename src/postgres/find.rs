//! Server binaries on this machine: where they are looked for, and what makes a folder usable.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::Error;
use super::account::Account;

/// Oldest major version that the broker's schema is made for.
const MAJOR_MIN: u32 = 14;
/// How long a program may take to tell its version.
const PROBE_PATIENCE: Duration = Duration::from_secs(20);

/// Usual folders by packager; `*` stands for one part of a name, and higher numbers come first.
const PATTERNS: [&str; 13] = [
    // Debian and its children; also Arch and SUSE.
    "/usr/lib/postgresql/*/bin",
    "/usr/lib/postgresql*/bin",
    // Packages of the PostgreSQL project for Red Hat and its children.
    "/usr/pgsql-*/bin",
    // Alpine.
    "/usr/libexec/postgresql*",
    // Gentoo.
    "/usr/lib64/postgresql-*/bin",
    // FreeBSD, and built from source.
    "/usr/local/pgsql/bin",
    // Homebrew on arm64, then on x86-64.
    "/opt/homebrew/opt/postgresql@*/bin",
    "/opt/homebrew/opt/postgresql/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql/bin",
    // MacPorts.
    "/opt/local/lib/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
    "/Library/PostgreSQL/*/bin",
];

/// Where server binaries are looked for.
#[derive(Clone, Debug)]
pub struct Search {
    /// List of folders in the form of `PATH`; links in them are followed.
    pub path: OsString,
    /// Further folders, in order; `*` stands for any part of one name.
    pub patterns: Vec<String>,
    /// Whether a pinned build may be fetched with the Python package client when nothing is found.
    pub fetch: bool,
}

impl Search {
    /// Looks in `PATH`, in the usual folders of packagers, and fetches when nothing is found.
    pub fn system() -> Self {
        Self {
            path: env::var_os("PATH").unwrap_or_default(),
            patterns: PATTERNS.map(str::to_owned).to_vec(),
            fetch: true,
        }
    }

    /// Looks in the given folders only, and fetches nothing.
    pub fn only(patterns: impl IntoIterator<Item = String>) -> Self {
        Self { path: OsString::new(), patterns: patterns.into_iter().collect(), fetch: false }
    }
}

impl Default for Search {
    fn default() -> Self {
        Self::system()
    }
}

/// A usable folder of server binaries.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    pub(super) dir: PathBuf,
    /// As the server tells it, like `15.20`.
    pub(super) version: String,
    pub(super) major: u32,
    pub(super) fetched: bool,
}

impl Binaries {
    /// Checks one folder; the reason is for people.
    pub(super) async fn probe(dir: &Path, account: &Account) -> Result<Self, String> {
        let server = dir.join("postgres").canonicalize();
        let server = server.map_err(|_missing| "there is no postgres in it".to_owned())?;
        let dir = server.parent().unwrap_or(dir);
        if !dir.join("initdb").is_file() {
            return Err("there is no initdb in it".to_owned());
        }
        account.check_reach(dir).map_err(|error| error.to_string())?;
        let told = ask(account.command(&server).arg("--version")).await?;
        let version = version_in(&told)
            .ok_or_else(|| format!("its postgres does not tell a version: {}", told.trim()))?;
        let major = major_of(&version).ok_or_else(|| format!("odd version {version}"))?;
        if major < MAJOR_MIN {
            return Err(format!("version {version} is older than {MAJOR_MIN}"));
        }
        if !has_plpgsql(dir, account).await {
            return Err(format!("version {version} lacks the PL/pgSQL library"));
        }
        Ok(Self { dir: dir.to_owned(), version, major, fetched: false })
    }
}

/// What a search met.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Usable folders, in the order of the search.
    pub(super) usable: Vec<Binaries>,
    /// Where it looked, with a reason where something was of no use.
    pub(super) looked: Vec<String>,
}

/// Looks everywhere; stops at the first folder of the `wanted` major version, or of any if none is.
pub(super) async fn search(search: &Search, wanted: Option<u32>, account: &Account) -> Found {
    let mut found = Found::default();
    let path: Vec<PathBuf> = env::split_paths(&search.path).filter(|p| p.is_absolute()).collect();
    let pg_config = path.iter().map(|dir| dir.join("pg_config")).find(|file| file.is_file());
    let mut groups = vec![("PATH".to_owned(), path)];
    groups.extend(search.patterns.iter().map(|pattern| (pattern.clone(), expand(pattern))));
    if let Some(program) = pg_config {
        let told = ask(account.command(&program).arg("--bindir")).await.unwrap_or_default();
        let dirs = Some(PathBuf::from(told.trim())).filter(|dir| dir.is_absolute());
        groups.push(("pg_config --bindir".to_owned(), dirs.into_iter().collect()));
    }
    for (name, dirs) in groups {
        found.looked.push(name);
        for dir in dirs.iter().filter(|dir| dir.join("postgres").exists()) {
            match Binaries::probe(dir, account).await {
                Ok(binaries) if found.usable.iter().any(|b| b.dir == binaries.dir) => {}
                Ok(binaries) => {
                    let done = wanted.is_none_or(|wanted| wanted == binaries.major);
                    found.usable.push(binaries);
                    if done {
                        return found;
                    }
                }
                Err(reason) => found.looked.push(format!("{} ({reason})", dir.display())),
            }
        }
    }
    found
}

/// Major version that made a data folder; nothing when there is no such folder or it is empty.
pub(super) fn made_by(data: &Path) -> Result<Option<u32>, Error> {
    let major = fs::read_to_string(data.join("PG_VERSION")).ok().and_then(|v| major_of(v.trim()));
    let is_empty =
        || fs::read_dir(data).map_or_else(|_| !data.exists(), |mut d| d.next().is_none());
    match major {
        None if !is_empty() => Err(Error::NotACluster { data: data.to_owned() }),
        major => Ok(major),
    }
}

async fn has_plpgsql(dir: &Path, account: &Account) -> bool {
    let mut folders = Vec::new();
    let pg_config = dir.join("pg_config");
    if pg_config.is_file()
        && let Ok(told) = ask(account.command(&pg_config).arg("--pkglibdir")).await
    {
        folders.push(PathBuf::from(told.trim()));
    }
    // Client and server may be packaged apart, so pg_config may be missing.
    let prefix = dir.parent().unwrap_or(dir);
    let usual = ["lib", "lib/postgresql", "lib64/pgsql", "lib/pgsql", "lib64/postgresql"];
    folders.extend(usual.map(|below| prefix.join(below)));
    if let Some(name) = dir.file_name() {
        folders.push(Path::new("/usr/lib").join(name));
    }
    folders.iter().any(|folder| {
        ["plpgsql.so", "plpgsql.dylib"].iter().any(|file| folder.join(file).is_file())
    })
}

/// Runs a program that only tells something, and returns what it wrote.
pub(super) async fn ask(command: &mut tokio::process::Command) -> Result<String, String> {
    let output = timeout(PROBE_PATIENCE, command.kill_on_drop(true).output()).await;
    let output = output
        .map_err(|_elapsed| "a program in it does not answer".to_owned())?
        .map_err(|error| format!("a program in it cannot be run: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("a program in it failed ({}): {}", output.status, said.trim()))
    }
}

/// Folders that a pattern names, higher numbers first.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let Some((before, after)) = part.split_once('*') else {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        let mut matching: Vec<(Vec<u32>, PathBuf)> = Vec::new();
        for entry in paths.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let middle = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            if let Some(middle) = middle {
                let numbers = middle.split(|c: char| !c.is_ascii_digit());
                matching.push((numbers.filter_map(|n| n.parse().ok()).collect(), entry.path()));
            }
        }
        matching.sort();
        paths = matching.into_iter().rev().map(|(_, path)| path).collect();
    }
    paths
}

/// Finds `15.20` in `postgres (PostgreSQL) 15.20 (Debian ...)`.
fn version_in(told: &str) -> Option<String> {
    let (_, rest) = told.split_once("(PostgreSQL)")?;
    rest.split_whitespace().next().map(str::to_owned)
}

fn major_of(version: &str) -> Option<u32> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let told = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(version_in(told).as_deref(), Some("15.18"));
        assert_eq!(version_in("pg_ctl 3"), None);
        assert_eq!(major_of("19beta1"), Some(19));
        assert_eq!(major_of("x"), None);
    }

    #[test]
    fn patterns_give_higher_numbers_first() {
        let root = tempfile::tempdir().expect("temporary folder");
        for version in ["9", "14", "17", "x"] {
            fs::create_dir_all(root.path().join(format!("pg-{version}/bin"))).expect("own folder");
        }
        let found = expand(&format!("{}/pg-*/bin", root.path().display()));
        let expected = ["17", "14", "9", "x"].map(|v| root.path().join(format!("pg-{v}/bin")));
        assert_eq!(found, expected);
        assert!(expand("/nowhere/*/bin").is_empty());
    }
}
