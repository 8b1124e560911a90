//! What is refused at upload, and in which words.

use super::{guest::Guest, *};
use crate::fold::{
    Form, UploadError,
    upload::{COMPONENTIZER, WASI_STUB, guarded},
};

fn check(bytes: &[u8]) -> Result<crate::fold::Checked, UploadError> {
    crate::fold::upload::check(bytes, &Limits::default())
}

fn refusal(bytes: &[u8]) -> UploadError {
    check(bytes).expect_err("refused")
}

fn refusal_of(wat: &str) -> UploadError {
    refusal(&wat::parse_str(wat).expect("a module"))
}

#[test]
fn the_stub_is_its_text() {
    let text = include_str!("../wasi_stub.wat");
    assert_eq!(wat::parse_str(text).expect("a module"), WASI_STUB);
}

#[test]
fn the_key_of_the_cache_names_the_componentizer_in_use() {
    let lock = include_str!("../../../Cargo.lock");
    let version = lock.split("name = \"wit-component\"\nversion = \"").nth(1);
    let version = version.and_then(|rest| rest.split('"').next()).expect("it is in the lock");
    assert!(COMPONENTIZER.contains(&format!("wit-component {version},")), "{version}");
}

#[test]
fn a_module_without_metadata_gets_that_of_its_world() {
    let wasm = Guest::new().wasm();
    let checked = check(&wasm).expect("a good module");
    assert_eq!((checked.form, checked.abi), (Form::CoreWithoutMetadata, "0.1.0"));
    assert_eq!(checked.hash, ModuleHash::of(&wasm));
    assert!(!checked.migrates);
    assert_eq!(checked.functions, 5);
    let component = checked.into_component();
    let again = check(&component).expect("what is made of a module can be uploaded");
    assert_eq!(again.form, Form::Component);
    assert_eq!(again.into_component(), component);
    let twice = check(&wasm).expect("a good module").into_component();
    assert_eq!(twice, component, "componentizing is repeatable");
}

#[test]
fn metadata_of_the_module_itself_is_taken() {
    let wasm = with_metadata(&Guest::new().wasm(), "0.1.0");
    assert_eq!(check(&wasm).expect("a good module").form, Form::Core);
    let error = refusal(&with_metadata(&Guest::new().wasm(), "99.0.0"));
    let UploadError::AbiVersion { found, supported } = &error else { panic!("{error}") };
    assert_eq!((found.as_str(), supported.as_str()), ("99.0.0", "0.1.0"));
}

fn with_metadata(wasm: &[u8], version: &str) -> Vec<u8> {
    let wit = include_str!("../../../guest-sdk/wit/fold.wit");
    let wit = wit.replace("foldmq:fold@0.1.0", &format!("foldmq:fold@{version}"));
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("fold.wit", &wit).expect("good text");
    let world = resolve.select_world(&[package], Some("fold")).expect("the world");
    let mut wasm = wasm.to_vec();
    let utf8 = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut wasm, &resolve, world, utf8).expect("metadata");
    wasm
}

#[test]
fn what_is_no_wasm_is_named_with_its_byte() {
    assert_eq!(refusal(b""), UploadError::Empty);
    let toml = refusal(b"[package]\nname = \"x\"\n");
    assert_eq!(
        toml.to_string(),
        "not a WebAssembly module: a text file that begins with `[package]` at byte 0; send the \
         .wasm file itself, not compressed"
    );
    for (bytes, what, at) in [
        (&b"\x1f\x8b\x08\0\0\0\0\0"[..], "a gzip file", 0),
        (b"PK\x03\x04....", "a zip archive", 0),
        (b"\x7fELF\x02\x01\x01\0", "a native executable", 0),
        (b"(module)", "WebAssembly as text (compile it with wat2wasm or wasm-tools parse)", 0),
        (b"\0as\xff\x01\0\0\0", "an unknown binary file", 3),
        (b"\0asm\x02\0\0\0", "an unknown version of WebAssembly (02000000)", 4),
    ] {
        let UploadError::NotWasm { found, at: offset } = refusal(bytes) else { panic!("{what}") };
        assert_eq!((found.as_str(), offset), (what, at));
    }
}

#[test]
fn a_truncated_module_is_called_so_wherever_it_ends() {
    let wasm = Guest::new().wasm();
    let mut truncated = 0;
    for end in 1..wasm.len() {
        match check(&wasm[..end]) {
            Err(UploadError::Truncated { at, .. }) => {
                assert_eq!(at, end);
                truncated += 1;
            }
            // Between two sections a shorter module ends, which may lack something.
            Ok(_) | Err(UploadError::Invalid { .. } | UploadError::MissingExport { .. }) => {}
            Err(error) => panic!("{end}: {error}"),
        }
    }
    assert!(truncated > wasm.len() - 12, "{truncated} of {}", wasm.len());
    assert!(refusal(&wasm[..wasm.len() - 1]).is_unreadable());
}

#[test]
fn unknown_imports_are_named_with_a_way_out() {
    let import = |module: &str, name: &str| {
        let text = format!(r#"(import "{module}" "{name}" (func))"#);
        let error =
            refusal_of(&Guest::new().wat().replacen("(module", &format!("(module {text}"), 1));
        match error {
            UploadError::UnknownImport { module, name, hint } => (module, name, hint),
            error => panic!("{error}"),
        }
    };
    for (module, name, hint) in [
        ("env", "abort", "--use abort="),
        ("env", "host_function", "wasm32-unknown-unknown"),
        ("wasi_snapshot_preview1", "sock_send", "inert"),
        ("$root", "read_state", "newer SDK"),
        ("__wbindgen_placeholder__", "__wbindgen_throw", "wasm-bindgen"),
        ("wasi:io/streams@0.2.0", "drop", "wasm32-unknown-unknown"),
    ] {
        let found = import(module, name);
        assert_eq!((found.0.as_str(), found.1.as_str()), (module, name));
        assert!(found.2.contains(hint), "{}", found.2);
    }
    let component = r#"(component (import "wasi:cli/environment@0.2.0" (instance)))"#;
    let UploadError::UnknownImport { module, hint, .. } = refusal_of(component) else {
        panic!("it has no WASI")
    };
    assert_eq!(module, "wasi:cli/environment@0.2.0");
    assert!(hint.contains("--stub-wasi"));
    let newer = r#"(component (import "foldmq:fold/types@0.9.0" (instance)))"#;
    assert_eq!(refusal_of(newer).code(), "module_abi");
}

#[test]
fn inert_wasi_is_built_in() {
    let mut guest = Guest::new();
    let text = r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
          (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
    let at = guest.bytes(&[0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    let answer = guest.start.clone();
    guest.start = format!(
        "(if (call $write (i32.const 1) (i32.const {at}) (i32.const 2) (i32.const {written}))
           (then (unreachable)))
         (if (i32.ne (i32.load (i32.const {written})) (i32.const 11)) (then (unreachable)))
         (drop (call $random (i32.const {written}) (i32.const 1)))
         (if (i32.ne (i32.load8_u (i32.const {written})) (i32.const 42)) (then (unreachable)))
         {answer}",
        written = at + 16
    );
    let wasm = wat::parse_str(guest.wat().replacen("(module", text, 1)).expect("a module");
    let module = Lab::new().load(&wasm).expect("it loads");
    done(module.start(&context(), &batch()).expect("it runs"));
}

#[test]
fn a_module_must_fit_the_world() {
    let error = refusal_of("(module (memory (export \"memory\") 1))");
    assert_eq!(error, UploadError::MissingExport { name: "describe".to_owned() });
    let wat = Guest::new().wat();
    let wrong = wat.replace(
        r#"(export "resume") (param $rows i32)"#,
        r#"(export "resume") (param $rows i64)"#,
    );
    let error = refusal_of(&wrong);
    assert_eq!(error.code(), "module_mismatch", "{error}");
    assert!(error.to_string().contains("resume"), "{error}");
    let no_memory = wat.replace(r#"(memory (export "memory") 2)"#, "(memory 2)");
    assert_eq!(refusal_of(&no_memory).code(), "module_mismatch");
    let component = format!("(component {})", r#"(core module)"#);
    assert_eq!(refusal_of(&component).code(), "module_export");
}

#[test]
fn a_component_of_wrong_types_is_refused_when_it_is_loaded() {
    let text = r#"(component
        (core module $m
          (func (export "f") (param i32) (result i32) (local.get 0)))
        (core instance $i (instantiate $m))
        (func $f (param "x" u32) (result u32) (canon lift (core func $i "f")))
        (export "describe" (func $f))
        (export "start" (func $f))
        (export "resume" (func $f))
        (export "flush" (func $f)))"#;
    let error = Lab::new().load(&wat::parse_str(text).expect("a component")).expect_err("types");
    assert_eq!(error.code(), "module_mismatch");
    assert!(error.to_string().contains("describe"), "{error}");
}

#[test]
fn features_that_are_switched_off_are_refused_with_an_offset() {
    for wat in [
        "(module (memory i64 1))",
        "(module (memory 1) (memory 1))",
        "(module (memory 1 2 shared))",
        "(module (func (param v128) (drop (i32x4.relaxed_trunc_f32x4_s (local.get 0)))))",
        "(module (type (struct)))",
        "(module (tag))",
    ] {
        let error = refusal_of(wat);
        assert!(
            matches!(error, UploadError::Invalid { at: 8.., .. } | UploadError::Limit { .. }),
            "{wat}: {error}"
        );
    }
}

#[test]
fn sizes_and_counts_are_bounded() {
    let limited = |wat: &str, what: &str, asked: u64| {
        let error = refusal_of(wat);
        let UploadError::Limit { what: found, asked: size, .. } = &error else { panic!("{error}") };
        assert_eq!((*found, *size), (what, asked), "{error}");
        error
    };
    limited("(module (memory 32768))", "bytes of memory at the start", 1 << 31);
    limited("(module (table 20001 funcref))", "table elements at the start", 20_001);
    limited(&format!("(module {})", "(table 1 funcref)".repeat(9)), "tables", 9);
    limited(&format!("(module {})", "(func)".repeat(20_001)), "functions", 20_001);
    let exports: String = (0..1_001).map(|n| format!("(export \"{n}\" (func 0))")).collect();
    limited(&format!("(module (func) {exports})"), "exports", 1_001);
    let body = "nop ".repeat(1 << 20);
    let error =
        limited(&format!("(module (func) (func $big {body}))"), "bytes of the body", (1 << 20) + 2);
    assert!(error.to_string().contains("of function 1 `big`"), "{error}");
    let error = refusal(&vec![0; (4 << 20) + 1]);
    assert!(matches!(error, UploadError::Limit { what: "bytes of the module", .. }));
}

#[test]
fn hashes_are_lower_case_hexadecimal() {
    let hash = ModuleHash::of(b"");
    let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(hash.to_string(), text);
    assert_eq!(text.parse(), Ok(hash));
    for bad in [&text.to_uppercase(), &text[1..], "", "g"] {
        assert!(bad.parse::<ModuleHash>().is_err(), "{bad}");
    }
}

/// A component of one section.
fn component(section: u8, data: &[u8]) -> Vec<u8> {
    let mut wasm = b"\0asm\x0d\0\x01\0".to_vec();
    wasm.push(section);
    let mut size = data.len();
    while size >= 0x80 {
        wasm.push(u8::try_from(size & 0x7f).expect("seven bits") | 0x80);
        size >>= 7;
    }
    wasm.push(u8::try_from(size).expect("seven bits"));
    wasm.extend_from_slice(data);
    wasm
}

#[test]
fn what_parsers_read_by_recursion_is_bounded_before_they_do() {
    // Types of components, or of instances, that declare one type each, to the depth of a million.
    let types = |kind: u8, levels: usize| {
        let mut data = vec![1];
        data.extend([kind, 1, 1].repeat(levels));
        data.push(0x73);
        component(7, &data)
    };
    for kind in [0x41, 0x42] {
        let deep = types(kind, 1_000_000);
        assert!(matches!(refusal(&deep), UploadError::Limit { what: "nested types", .. }));
        // As deep as is let through: it fits the stack of any thread.
        assert_eq!(refusal(&types(kind, 100)).code(), "module_export");
    }
    // The same in the metadata of a core module.
    let mut section = vec![14];
    section.extend(b"component-type");
    section.extend(types(0x41, 1_000_000));
    let mut module = component(0, &section);
    module.splice(4..8, [1, 0, 0, 0]);
    assert!(matches!(refusal(&module), UploadError::Limit { what: "nested types", .. }));
    let nested = (0..1_000).fold(component(7, &[0]), |inner, _| component(4, &inner));
    assert!(matches!(
        refusal(&nested),
        UploadError::Limit { what: "levels of nested components", asked: 17, .. }
    ));
}

#[test]
fn a_panic_of_the_componentizer_refuses_the_module() {
    let error = guarded::<()>(|| panic!("metadata that it did not expect")).expect_err("caught");
    assert_eq!(error.code(), "module_mismatch");
}
