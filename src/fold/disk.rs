//! Compiled code on disk.
//!
//! A file of compiled code is executed as it stands, so only this server may write to the directory
//! (mode 0700), files appear whole or not at all (temporary name, sync, rename), and each has a
//! digest beside it that is compared before the file is mapped. A file that fails is removed and
//! made again. The name holds everything that the code depends on: the module's hash, the runtime's
//! version and settings, and the version of the componentizer.

use std::{
    fs::{self, File},
    hash::{Hash, Hasher},
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempPath};
use wasmtime::component::Component;

use super::{
    error::{ErrorKind, Result, io as failed},
    hash::ModuleHash,
    limits::Limits,
    upload::COMPONENTIZER,
};

/// What the names of incomplete files begin with.
const TEMPORARY: &str = "incomplete-";
/// Age beyond which an incomplete file belongs to nobody: no compile takes as long.
const ABANDONED: Duration = Duration::from_secs(3_600);

/// The directory of compiled code.
pub(super) struct Disk {
    dir: Arc<Path>,
    /// What compiled code depends on besides the module.
    key: String,
    bytes_max: u64,
}

impl Disk {
    /// Makes the directory, or takes it over.
    pub(super) fn new(dir: PathBuf, engine: &wasmtime::Engine, limits: &Limits) -> Result<Self> {
        let what = format!("could not make the cache directory {}", dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed(what))?;
        remove_abandoned(&dir);
        let bytes_max = limits.disk_cache_bytes;
        Ok(Self { dir: dir.into(), key: key(engine), bytes_max })
    }

    /// Where a module lies.
    pub(super) fn place(&self, hash: ModuleHash) -> Place {
        let Self { dir, key, bytes_max } = self;
        let code = dir.join(format!("{hash}.{key}.cwasm"));
        Place { code, dir: Arc::clone(dir), bytes_max: *bytes_max }
    }
}

/// Where one module lies.
pub(super) struct Place {
    dir: Arc<Path>,
    code: PathBuf,
    bytes_max: u64,
}

impl Place {
    pub(super) fn dir(&self) -> Arc<Path> {
        Arc::clone(&self.dir)
    }

    /// Maps the compiled code; `None` if there is none, or none that can be trusted.
    ///
    /// [`ErrorKind::Compile`] if the runtime does not take the code, which may be the fault of the
    /// settings it was made under.
    pub(super) fn open(&self, engine: &wasmtime::Engine) -> Result<Option<Component>> {
        let Some(found) = digest_of(&self.code)? else {
            return Ok(None);
        };
        let expected = fs::read_to_string(digest_beside(&self.code)).unwrap_or_default();
        if expected != found {
            tracing::warn!(file = %self.code.display(), "removed compiled code of a wrong digest");
            remove(&self.code);
            return Ok(None);
        }
        #[expect(unsafe_code, reason = "mapping compiled code is unsafe by nature; see SAFETY")]
        // SAFETY: the file was written whole by this server into a directory that nobody else may
        // write to, under a name that says for which runtime; its digest has just been compared;
        // files are replaced by rename, never changed.
        let component = unsafe { Component::deserialize_file(engine, &self.code) };
        component.map(Some).map_err(|error| {
            remove(&self.code);
            ErrorKind::Compile(format!("{error:#}")).into()
        })
    }

    /// Takes a compiled file over: its digest first, so that code without one is never complete.
    pub(super) fn store(&self, compiled: TempPath) -> Result<()> {
        let failed = |error| failed(format!("could not keep {}", self.code.display()))(error);
        let digest = digest_of(&compiled)?.unwrap_or_default();
        let mut file = temporary(&self.dir)?;
        file.write_all(digest.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(digest_beside(&self.code)).map_err(|error| failed(error.error))?;
        File::open(&compiled).and_then(|file| file.sync_all()).map_err(failed)?;
        compiled.persist(&self.code).map_err(|error| failed(error.error))?;
        self.make_room();
        Ok(())
    }

    /// Removes the oldest files of the directory until the rest fits. A module in use stays mapped.
    fn make_room(&self) {
        let mut files = compiled_files(&self.dir);
        files.retain(|file| file.path != self.code);
        files.sort_by_key(|file| file.modified);
        let own = fs::metadata(&self.code).map_or(0, |meta| meta.len());
        let mut bytes = files.iter().map(|file| file.bytes).sum::<u64>().saturating_add(own);
        for file in files {
            if bytes <= self.bytes_max {
                break;
            }
            bytes = bytes.saturating_sub(file.bytes);
            remove(&file.path);
        }
    }
}

/// Where the digest of compiled code lies.
fn digest_beside(code: &Path) -> PathBuf {
    code.with_extension("sha256")
}

/// Removes compiled code and its digest.
fn remove(code: &Path) {
    for path in [code, &digest_beside(code)] {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %path.display(), %error, "could not remove compiled code");
        }
    }
}

struct CompiledFile {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

fn compiled_files(dir: &Path) -> Vec<CompiledFile> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let compiled = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let meta = path.extension().is_some_and(|it| it == "cwasm").then(|| fs::metadata(&path));
        let meta = meta?.ok()?;
        Some(CompiledFile { bytes: meta.len(), modified: meta.modified().ok()?, path })
    };
    entries.filter_map(compiled).collect()
}

/// A file of this layer that is not yet complete.
pub(super) fn temporary(dir: &Path) -> Result<NamedTempFile> {
    let what = format!("could not write to the cache directory {}", dir.display());
    tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir).map_err(failed(what))
}

/// Removes temporary files that a process left when it was killed, unless they may still be in use.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let age = entry.metadata().and_then(|meta| meta.modified()).ok();
        let age = age.and_then(|modified| modified.elapsed().ok());
        if temporary && age.is_some_and(|age| age > ABANDONED) {
            // Another broker may have been faster.
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// SHA-256 of a file, in hexadecimal; `None` if it does not exist.
fn digest_of(path: &Path) -> Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(format!("could not open {}", path.display()))(error)),
    };
    let mut digest = Sha256::new();
    io::copy(&mut file, &mut digest)
        .map_err(failed(format!("could not read {}", path.display())))?;
    Ok(Some(hex::encode(digest.finalize())))
}

/// Everything that compiled code depends on besides the module, as 16 hexadecimal digits.
fn key(engine: &wasmtime::Engine) -> String {
    struct Digester(Sha256);
    impl Hasher for Digester {
        fn finish(&self) -> u64 {
            let digest = self.0.clone().finalize();
            digest.iter().take(8).fold(0, |all, byte| (all << 8) | u64::from(*byte))
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
    }
    let mut hasher = Digester(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    COMPONENTIZER.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
