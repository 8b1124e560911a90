//! What is done with uploaded bytes before they are compiled: find out what they are, refuse what
//! could not run, and make one component out of them.
//!
//! A core module with metadata (what a Rust toolchain gives) is componentized; one without gets the
//! metadata of the world that its exports fit; a component is taken as it is. Nothing here keeps
//! anything. Order of the checks: cheap before dear, and what explains most before what explains
//! least.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use wasmparser::{Validator, WasmFeatures};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use super::{
    hash::ModuleHash,
    imports,
    limits::Limits,
    refusal::UploadError,
    survey::{Survey, invalid},
};

/// The versions of the interface that this server speaks, oldest first.
pub const SUPPORTED_ABI: &[&str] = &["0.1.0"];
/// Version of the componentizer and of the stub, which the bytes of a component depend on.
pub(super) const COMPONENTIZER: &str = "wit-component 0.254.2, stub 1";

/// The interface, for modules that don't bring their metadata. The newest version.
const WIT: &str = include_str!("../../guest-sdk/wit/fold.wit");
/// `wasi_stub.wat`, compiled.
pub(super) const WASI_STUB: &[u8] = include_bytes!("wasi_stub.wasm");
/// The module that functions of WASI are imported from.
pub(super) const WASI: &str = "wasi_snapshot_preview1";
/// The functions of the world, which a module exports at top level.
const EXPORTS: [&str; 4] = ["describe", "start", "resume", "flush"];
/// What a function of the world is imported from and exported with: as toolchains do it, and as the
/// specification wants it.
pub(super) const ROOTS: [&str; 2] = ["$root", "cm32p2"];
const STANDARD_EXPORT: &str = "cm32p2||";

/// What the engine's settings allow, so that a module is refused with an offset instead of by the
/// compiler.
const FEATURES: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL)
    .union(WasmFeatures::FLOATS);

/// In which form a module was uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// A core module with the metadata of its world.
    Core,
    /// A core module without metadata, written against the canonical ABI by hand.
    CoreWithoutMetadata,
    /// A component.
    Component,
}

/// A module that may be compiled.
#[derive(Clone)]
pub struct Checked {
    /// Hash of the uploaded bytes.
    pub hash: ModuleHash,
    /// In which form it was uploaded.
    pub form: Form,
    /// The version of the interface that it was built for, one of [`SUPPORTED_ABI`].
    pub abi: &'static str,
    /// Functions in it.
    pub functions: u64,
    /// Whether it can take over the state of an older module.
    pub migrates: bool,
    component: Vec<u8>,
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, form, abi, .. } = self;
        write!(f, "Checked({hash}, {form:?}, {abi})")
    }
}

impl Checked {
    /// The component that is to be compiled.
    pub(super) fn into_component(self) -> Vec<u8> {
        self.component
    }
}

/// Refuses everything that can be refused without compiling, and componentizes the rest.
pub(super) fn check(bytes: &[u8], limits: &Limits) -> Result<Checked, UploadError> {
    let [asked, limit] = [bytes.len(), limits.upload_bytes].map(|n| n as u64);
    if asked > limit {
        return Err(UploadError::Limit { what: "bytes of the module", name: None, asked, limit });
    }
    check_preamble(bytes)?;
    check_whole(bytes)?;
    let survey = Survey::of(bytes, limits)?;
    Validator::new_with_features(FEATURES).validate_all(bytes).map_err(invalid)?;
    let (form, abi, component) = if survey.is_component {
        (Form::Component, imports::check_component(&survey)?, bytes.to_vec())
    } else {
        let form = if survey.has_metadata { Form::Core } else { Form::CoreWithoutMetadata };
        let abi = if survey.has_metadata {
            guarded(|| declared_abi(bytes))?
        } else {
            imports::newest_abi()
        };
        imports::check_core(&survey)?;
        check_exports(&survey)?;
        let component = guarded(|| componentize(bytes, &survey))?;
        imports::check_component(&Survey::of(&component, limits)?)?;
        (form, abi, component)
    };
    check_exports(&survey)?;
    Ok(Checked {
        hash: ModuleHash::of(bytes),
        form,
        abi,
        functions: survey.functions,
        migrates: exports(&survey, "migrate"),
        component,
    })
}

/// Looks at the first eight bytes, and says what they are if they are no WebAssembly.
fn check_preamble(bytes: &[u8]) -> Result<(), UploadError> {
    const MAGIC: &[u8] = b"\0asm";
    if bytes.is_empty() {
        return Err(UploadError::Empty);
    }
    let same = bytes.iter().zip(MAGIC).take_while(|(found, magic)| found == magic).count();
    if same < MAGIC.len().min(bytes.len()) {
        return Err(UploadError::NotWasm { found: looks_like(bytes), at: same });
    }
    match bytes.get(MAGIC.len()..8) {
        None => {
            Err(UploadError::Truncated { at: bytes.len(), message: "8 bytes expected".to_owned() })
        }
        Some([1, 0, 0, 0] | [13, 0, 1, 0]) => Ok(()),
        Some(version) => {
            let found = format!("an unknown version of WebAssembly ({})", hex::encode(version));
            Err(UploadError::NotWasm { found, at: MAGIC.len() })
        }
    }
}

fn looks_like(bytes: &[u8]) -> String {
    let known: [(&[u8], &str); 6] = [
        (&[0x1f, 0x8b], "a gzip file"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "a zstd file"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x7fELF", "a native executable"),
        (b"(module", "WebAssembly as text (compile it with wat2wasm or wasm-tools parse)"),
        (b"(component", "WebAssembly as text (compile it with wasm-tools parse)"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return (*name).to_owned();
    }
    let head = String::from_utf8_lossy(bytes.get(..256).unwrap_or(bytes));
    let is_text = |c: char| !c.is_control() || c.is_whitespace();
    if !head.trim_end_matches('\u{fffd}').chars().all(|c| is_text(c) && c != '\u{fffd}') {
        return "an unknown binary file".to_owned();
    }
    let line: String = head.lines().next().unwrap_or_default().chars().take(40).collect();
    format!("a text file that begins with `{line}`")
}

/// Finds out whether the bytes end in the middle of a section, which a parser would call by many
/// names.
fn check_whole(bytes: &[u8]) -> Result<(), UploadError> {
    let mut at = 8;
    while at < bytes.len() {
        let whole = section_end(bytes, at).filter(|end| *end <= bytes.len());
        let Some(end) = whole else {
            let message = match section_end(bytes, at) {
                Some(end) => format!("the section at byte {at} should end at byte {end}"),
                None => format!("the section at byte {at} has no whole header"),
            };
            return Err(UploadError::Truncated { at: bytes.len(), message });
        };
        at = end;
    }
    Ok(())
}

/// Where the section that begins at `at` says that it ends; `None` if its header is cut off or no
/// number.
fn section_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut size = 0_usize;
    for (n, byte) in bytes.get(at.checked_add(1)?..)?.iter().take(5).enumerate() {
        size |= usize::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return at.checked_add(n)?.checked_add(2)?.checked_add(size);
        }
    }
    None
}

/// The supported version of the interface that a core module's metadata names.
fn declared_abi(bytes: &[u8]) -> Result<&'static str, UploadError> {
    let (_, metadata) = wit_component::metadata::decode(bytes).map_err(mismatch)?;
    let packages = metadata.resolve.packages.iter().map(|(_, package)| &package.name);
    let ours = packages.filter(|name| name.namespace == "foldmq" && name.name == "fold");
    let mut abi = None;
    for name in ours {
        let found =
            name.version.as_ref().map_or_else(|| "without version".into(), ToString::to_string);
        abi = Some(imports::supported_abi(&found)?);
    }
    abi.ok_or_else(|| UploadError::Mismatch {
        message: "its metadata names another interface".to_owned(),
    })
}

fn check_exports(survey: &Survey<'_>) -> Result<(), UploadError> {
    match EXPORTS.iter().find(|name| !exports(survey, name)) {
        Some(name) => Err(UploadError::MissingExport { name: (*name).to_owned() }),
        None => Ok(()),
    }
}

fn exports(survey: &Survey<'_>, name: &str) -> bool {
    let standard = |export: &str| export.strip_prefix(STANDARD_EXPORT) == Some(name);
    survey.exports.iter().any(|export| *export == name || standard(export))
}

/// Makes a component of a core module. The same bytes give the same component.
fn componentize(bytes: &[u8], survey: &Survey<'_>) -> Result<Vec<u8>, UploadError> {
    let mut module = bytes.to_vec();
    if !survey.has_metadata {
        let mut resolve = Resolve::default();
        let package = resolve.push_str("fold.wit", WIT).map_err(mismatch)?;
        let world = if exports(survey, "migrate") { "fold-migrate" } else { "fold" };
        let world = resolve.select_world(&[package], Some(world)).map_err(mismatch)?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .map_err(mismatch)?;
    }
    let mut encoder =
        ComponentEncoder::default().validate(true).module(&module).map_err(mismatch)?;
    if survey.imports.iter().any(|import| import.module == WASI) {
        encoder = encoder.adapter(WASI, WASI_STUB).map_err(mismatch)?;
    }
    encoder.encode().map_err(mismatch)
}

/// Runs code of the componentizer, which is not made for hostile metadata: its panic refuses the
/// module.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, UploadError>) -> Result<T, UploadError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = "its metadata can't be read (the componentizer panicked)".to_owned();
        Err(UploadError::Mismatch { message })
    })
}

fn mismatch(error: impl fmt::Display) -> UploadError {
    UploadError::Mismatch { message: imports::shown(&format!("{error:#}")) }
}
