//! Why a module is refused at upload, in words that tell its author what to do.

use std::fmt;

/// Why a module is refused before it is compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// The body is empty.
    #[error("the module is empty: 0 bytes were received")]
    Empty,
    /// The body is something else than WebAssembly.
    #[error(
        "not a WebAssembly module: {found} at byte {at}; send the .wasm file itself, not compressed"
    )]
    NotWasm {
        /// What it looks like.
        found: String,
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// The module stops in the middle.
    #[error("the module is cut off: it ends at byte {at}, inside a section ({message})")]
    Truncated {
        /// Where it ends.
        at: usize,
        /// The parser's words.
        message: String,
    },
    /// The module is invalid, or uses a feature of WebAssembly that is switched off.
    #[error("invalid WebAssembly at byte {at}: {message}")]
    Invalid {
        /// Offset of the fault.
        at: usize,
        /// The validator's words.
        message: String,
    },
    /// A number or size is above its limit.
    #[error("{what}{}: {asked}, limit {limit}", Whose(.name))]
    Limit {
        /// What was counted or measured, with its unit.
        what: &'static str,
        /// The function at fault, where it is one.
        name: Option<String>,
        /// The number found.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// The module imports something that this server does not have.
    #[error("unknown import `{module}` `{name}`: {hint}")]
    UnknownImport {
        /// Module or instance of the import.
        module: String,
        /// Name in it; empty for an import of a component.
        name: String,
        /// How to build the module without it.
        hint: &'static str,
    },
    /// The module was built for a version of the interface that this server does not speak.
    #[error("the module was built for foldmq:fold {found}; this server supports {supported}")]
    AbiVersion {
        /// The module's version.
        found: String,
        /// The versions that this server supports, separated by commas.
        supported: String,
    },
    /// An export of the world is missing.
    #[error(
        "the module does not export `{name}`: it must export describe, start, resume and flush"
    )]
    MissingExport {
        /// The export.
        name: String,
    },
    /// The module's imports or exports don't have the types of the interface.
    #[error("the module does not fit the world foldmq:fold: {message}")]
    Mismatch {
        /// The difference in words.
        message: String,
    },
}

struct Whose<'a>(&'a Option<String>);

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |name| write!(f, " of {name}"))
    }
}

impl UploadError {
    /// A stable code for clients and metrics.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Empty => "module_empty",
            Self::NotWasm { .. } => "module_not_wasm",
            Self::Truncated { .. } => "module_truncated",
            Self::Invalid { .. } => "module_invalid",
            Self::Limit { .. } => "module_limit",
            Self::UnknownImport { .. } => "module_import",
            Self::AbiVersion { .. } => "module_abi",
            Self::MissingExport { .. } => "module_export",
            Self::Mismatch { .. } => "module_mismatch",
        }
    }

    /// Whether the bytes are no readable WebAssembly at all; otherwise they are readable and
    /// refused.
    pub const fn is_unreadable(&self) -> bool {
        matches!(self, Self::Empty | Self::NotWasm { .. } | Self::Truncated { .. })
    }
}
