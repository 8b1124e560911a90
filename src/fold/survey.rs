//! Reads what a module consists of, without compiling or validating it: counts, sizes, imports,
//! exports.
//!
//! The survey bounds what the later, dearer steps have to look at. It walks nested modules and
//! components too, and stops at the first limit that is passed.

use std::ops::Range;

use wasmparser::{
    BinaryReaderError, ComponentImport, ComponentTypeRef, Encoding, Export, FunctionBody, Import,
    KnownCustom, Name, Parser, Payload, TypeRef,
};

use super::{limits::Limits, refusal::UploadError};

/// Components inside components: what tools make has two or three levels.
const DEPTH_MAX: usize = 16;
/// Types of components inside types of components, in one section; what tools make has two.
const NESTED_TYPES_MAX: usize = 100;
/// Bytes of a page of WebAssembly memory.
const PAGE_BYTES: u64 = 1 << 16;
/// Bytes of a function's name that an error text repeats.
const NAME_CHARS: usize = 200;

/// What was found in a module or component.
#[derive(Debug, Default)]
pub(super) struct Survey<'a> {
    pub(super) is_component: bool,
    /// Functions with a body, in all modules.
    pub(super) functions: u64,
    /// Imports of the module itself.
    pub(super) imports: Vec<Import<'a>>,
    /// Names of what the component itself imports, types aside.
    pub(super) component_imports: Vec<&'a str>,
    /// Names of what the module or component itself exports.
    pub(super) exports: Vec<&'a str>,
    /// Whether the module says which world it was built for.
    pub(super) has_metadata: bool,
    modules: u64,
    memories: u64,
    tables: u64,
    /// Functions that the module at hand imports, and bodies of it seen so far: together the index
    /// of the next body.
    next_function: u64,
    depth: usize,
}

impl<'a> Survey<'a> {
    /// Walks through the bytes.
    pub(super) fn of(bytes: &'a [u8], limits: &Limits) -> Result<Self, UploadError> {
        let mut survey = Self::default();
        for payload in Parser::new(0).parse_all(bytes) {
            survey.visit(payload.map_err(invalid)?, bytes, limits)?;
        }
        Ok(survey)
    }

    fn visit(
        &mut self,
        payload: Payload<'a>,
        bytes: &'a [u8],
        limits: &Limits,
    ) -> Result<(), UploadError> {
        match payload {
            Payload::Version { encoding, .. } => {
                self.next_function = 0;
                self.is_component |= encoding == Encoding::Component;
                if encoding == Encoding::Module {
                    self.modules += 1;
                    bounded("core modules", self.modules, limits.core_modules)?;
                }
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                self.depth += 1;
                bounded("levels of nested components", self.depth as u64, DEPTH_MAX)?;
            }
            Payload::ComponentTypeSection(section) => check_nesting(bytes, section.range())?,
            Payload::End(_) => self.depth = self.depth.saturating_sub(1),
            Payload::ImportSection(section) => {
                bounded("imports", section.count().into(), limits.exports)?;
                for import in section.into_imports() {
                    self.import(import.map_err(invalid)?, limits)?;
                }
            }
            Payload::ExportSection(section) => {
                bounded("exports", section.count().into(), limits.exports)?;
                if self.depth == 0 {
                    let names: Result<Vec<Export<'a>>, _> = section.into_iter().collect();
                    self.exports.extend(names.map_err(invalid)?.iter().map(|export| export.name));
                }
            }
            Payload::ComponentImportSection(section) => {
                bounded("imports", section.count().into(), limits.exports)?;
                if self.depth == 0 {
                    for import in section {
                        let ComponentImport { name, ty } = import.map_err(invalid)?;
                        // A type is only a name for something that is imported or known anyway.
                        if !matches!(ty, ComponentTypeRef::Type(_)) {
                            self.component_imports.push(name.name);
                        }
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                bounded("exports", section.count().into(), limits.exports)?;
                if self.depth == 0 {
                    for export in section {
                        self.exports.push(export.map_err(invalid)?.name.name);
                    }
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memory(memory.map_err(invalid)?.initial, limits)?;
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    self.table(table.map_err(invalid)?.ty.initial, limits)?;
                }
            }
            Payload::CodeSectionStart { count, .. } => {
                self.functions += u64::from(count);
                bounded("functions", self.functions, limits.functions)?;
            }
            Payload::CodeSectionEntry(body) => self.body(&body, bytes, limits)?,
            Payload::CustomSection(section)
                if self.depth == 0 && section.name().starts_with("component-type") =>
            {
                self.has_metadata = true;
                check_metadata(section.data())?;
            }
            _ => {}
        }
        Ok(())
    }

    fn import(&mut self, import: Import<'a>, limits: &Limits) -> Result<(), UploadError> {
        match import.ty {
            TypeRef::Func(_) | TypeRef::FuncExact(_) => self.next_function += 1,
            // What a nested module imports is defined by its neighbour.
            TypeRef::Memory(_) | TypeRef::Table(_) | TypeRef::Global(_) | TypeRef::Tag(_) => {}
        }
        if self.depth == 0 && !self.is_component {
            self.imports.push(import);
            bounded("imports", self.imports.len() as u64, limits.exports)?;
        }
        Ok(())
    }

    fn memory(&mut self, initial_pages: u64, limits: &Limits) -> Result<(), UploadError> {
        self.memories += 1;
        bounded("memories", self.memories, 1)?;
        let bytes = initial_pages.saturating_mul(PAGE_BYTES);
        bounded("bytes of memory at the start", bytes, limits.memory_bytes)
    }

    fn table(&mut self, initial: u64, limits: &Limits) -> Result<(), UploadError> {
        self.tables += 1;
        bounded("tables", self.tables, limits.tables)?;
        bounded("table elements at the start", initial, limits.table_elements)
    }

    fn body(
        &mut self,
        body: &FunctionBody<'_>,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<(), UploadError> {
        let index = self.next_function;
        self.next_function += 1;
        let size = body.range().len() as u64;
        bounded("bytes of the body", size, limits.function_bytes).map_err(|error| match error {
            UploadError::Limit { what, asked, limit, .. } => {
                let name = (self.depth == 0).then(|| function_name(bytes, index)).flatten();
                let name = name.unwrap_or_else(|| format!("function {index}"));
                UploadError::Limit { what, name: Some(name), asked, limit }
            }
            error => error,
        })
    }
}

/// Metadata is the types of a world, in the form of a component.
fn check_metadata(data: &[u8]) -> Result<(), UploadError> {
    let unreadable = |error: BinaryReaderError| UploadError::Mismatch {
        message: format!("its metadata can't be read: {}", error.message()),
    };
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(data) {
        match payload.map_err(unreadable)? {
            Payload::ComponentTypeSection(section) => check_nesting(data, section.range())?,
            Payload::ComponentSection { .. } | Payload::ModuleSection { .. } => {
                depth += 1;
                bounded("levels of nested components", depth, DEPTH_MAX)?;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Refuses types of components inside types of components, deeper than a thread's stack allows.
///
/// Parsers read them by recursion, at up to 8 KiB of stack and three bytes of the module for each
/// level. A level has one of two bytes, so that their number bounds the depth without any parsing.
fn check_nesting(bytes: &[u8], section: Range<usize>) -> Result<(), UploadError> {
    const COMPONENT_TYPE: u8 = 0x41;
    const INSTANCE_TYPE: u8 = 0x42;
    let section = bytes.get(section).unwrap_or(bytes).iter();
    let levels = section.filter(|byte| matches!(**byte, COMPONENT_TYPE | INSTANCE_TYPE)).count();
    bounded("nested types", levels as u64, NESTED_TYPES_MAX)
}

/// For `map_err`: the parser's or validator's words, and the offset that it gives.
pub(super) fn invalid(error: BinaryReaderError) -> UploadError {
    UploadError::Invalid { at: error.offset(), message: error.message().to_owned() }
}

fn bounded(what: &'static str, asked: u64, limit: usize) -> Result<(), UploadError> {
    let limit = limit as u64;
    if asked <= limit {
        return Ok(());
    }
    Err(UploadError::Limit { what, name: None, asked, limit })
}

/// The name of a function of a core module, from its name section if it has one.
fn function_name(bytes: &[u8], index: u64) -> Option<String> {
    let names = Parser::new(0).parse_all(bytes).find_map(|payload| match payload.ok()? {
        Payload::CustomSection(section) => match section.as_known() {
            KnownCustom::Name(names) => Some(names),
            _ => None,
        },
        _ => None,
    })?;
    let functions = names.into_iter().find_map(|name| match name.ok()? {
        Name::Function(functions) => Some(functions),
        _ => None,
    })?;
    let mut functions = functions.into_iter().filter_map(Result::ok);
    let found = functions.find(|naming| u64::from(naming.index) == index)?;
    let name: String = found.name.chars().filter(|c| !c.is_control()).take(NAME_CHARS).collect();
    Some(format!("function {index} `{name}`"))
}
