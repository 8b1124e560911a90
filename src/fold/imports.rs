//! What a module may import, and what to tell someone whose module imports more.

use super::{
    limits::Limits,
    refusal::UploadError,
    survey::Survey,
    upload::{ROOTS, SUPPORTED_ABI, WASI, WASI_STUB},
};

/// Checks what a core module wants of the server.
pub(super) fn check_core(survey: &Survey<'_>) -> Result<(), UploadError> {
    let stub = Survey::of(WASI_STUB, &Limits::default())?;
    for import in &survey.imports {
        let known = match import.module {
            module if ROOTS.contains(&module) => import.name == "log",
            WASI => stub.exports.contains(&import.name),
            _ => false,
        };
        if !known {
            return Err(UploadError::UnknownImport {
                module: shown(import.module),
                name: shown(import.name),
                hint: core_hint(import.module, import.name),
            });
        }
    }
    Ok(())
}

fn core_hint(module: &str, name: &str) -> &'static str {
    match (module, name) {
        ("env", "abort") => "build AssemblyScript with `--use abort=`",
        ("env", "memory" | "__linear_memory" | "__indirect_function_table") => {
            "the module must define its own memory and table; link without `--import-memory`"
        }
        (WASI, _) => {
            "only inert parts of WASI exist here; build for wasm32-unknown-unknown, or without \
             files, sockets and threads"
        }
        (module, _) if module.starts_with("__wbindgen") || module == "wbg" => {
            "wasm-bindgen is for browsers; build a cdylib without it (look for the `js` or \
             `wasmbind` feature of a dependency)"
        }
        (module, _) if module.starts_with("wasi:") => {
            "this server has no WASI; build for wasm32-unknown-unknown"
        }
        (module, _) if ROOTS.contains(&module) => {
            "the only function of the server is `log`; the module may be built with a newer SDK"
        }
        _ => "the only function of the server is `log`; build for wasm32-unknown-unknown",
    }
}

/// Checks what a component wants of the server; gives the version of the interface.
pub(super) fn check_component(survey: &Survey<'_>) -> Result<&'static str, UploadError> {
    let mut abi = newest_abi();
    for &import in &survey.component_imports {
        if import == "log" {
            continue;
        }
        let types = import.strip_prefix("foldmq:fold/").and_then(|rest| rest.split_once('@'));
        let hint = match types {
            Some((interface, version)) => {
                abi = supported_abi(version)?;
                if interface == "types" {
                    continue;
                }
                "this server has no such interface; the module may be built with a newer SDK"
            }
            None if import.starts_with("wasi:") => {
                "this server has no WASI; use `--stub-wasi` of componentize-py, `disableFeatures` \
                 of componentize-js, or build Rust for wasm32-unknown-unknown"
            }
            None => "the only function of the server is `log`",
        };
        return Err(UploadError::UnknownImport {
            module: shown(import),
            name: String::new(),
            hint,
        });
    }
    Ok(abi)
}

/// The version of the interface, if the server speaks it.
pub(super) fn supported_abi(found: &str) -> Result<&'static str, UploadError> {
    SUPPORTED_ABI.iter().find(|supported| **supported == found).copied().ok_or_else(|| {
        UploadError::AbiVersion { found: found.to_owned(), supported: SUPPORTED_ABI.join(", ") }
    })
}

/// The newest version of the interface.
pub(super) fn newest_abi() -> &'static str {
    SUPPORTED_ABI.last().copied().unwrap_or_default()
}

/// A text of the module in a size and form that an error can repeat.
pub(super) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1_000).collect()
}
