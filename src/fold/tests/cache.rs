//! Compiling, the cache on disk and in memory, and sharing of the work.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{guest::Guest, *};

/// The child is this test program, told to run only [`compiling_child`] on the arguments behind
/// `--`.
fn child() -> Compiler {
    let program = std::env::current_exe().expect("the test program");
    let name = std::any::type_name_of_val(&compiling_child);
    let name = name.split_once("::").map_or(name, |(_, path)| path);
    let args = ["--ignored", "--exact", "--nocapture", name, "--"];
    Compiler::Child { program, args: args.map(str::to_owned).to_vec() }
}

#[test]
#[ignore = "runs in the child process of other tests"]
fn compiling_child() {
    let args: Vec<OsString> = std::env::args_os().skip_while(|arg| arg != "--").skip(1).collect();
    if args.is_empty() {
        return;
    }
    let code = crate::fold::child_main(args);
    assert_eq!(code, ExitCode::SUCCESS);
}

fn compiled_files(lab: &Lab) -> Vec<PathBuf> {
    let entries = fs::read_dir(lab.dir.path().join("cache")).expect("the cache directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn a_child_compiles_what_the_engine_loads() {
    let lab = Lab::with(child(), Lab::limits());
    let module = lab.module(&Guest::new());
    done(module.start(&context(), &batch()).expect("it runs"));
    assert_eq!(lab.engine.stats().compiles, 1);
    assert_eq!(compiled_files(&lab).len(), 2, "code and digest, nothing else");
}

#[test]
fn settings_of_child_and_engine_are_compatible() {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let hash = |engine: &wasmtime::Engine| {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        hasher.finish()
    };
    let limits = Limits { memory_bytes: 1 << 20, stack_bytes: 1 << 20, ..Limits::default() };
    let pooled = crate::fold::engine::pooled(&limits, 2).expect("an engine");
    let config = crate::fold::engine::settings(&Limits::default());
    let compiling = wasmtime::Engine::new(&config).expect("an engine");
    assert_eq!(hash(&pooled), hash(&compiling));
}

#[test]
fn deep_nesting_is_compiled_or_refused_and_nothing_crashes() {
    let lab = Lab::with(child(), Limits { compile_cpu_s: 5, ..Lab::limits() });
    let mut guest = Guest::new();
    guest.extra = format!("(func {} {})", "(block ".repeat(50_000), ")".repeat(50_000));
    match lab.load(&guest.wasm()) {
        Ok(module) => drop(done(module.start(&context(), &batch()).expect("it runs"))),
        Err(error) => assert_eq!(error.code(), "compile", "{error}"),
    }
    lab.module(&Guest::new());
}

#[test]
fn a_compile_bomb_ends_at_its_limit() {
    let mut guest = Guest::new();
    let branch = "(if (local.get 0) (then (local.set 0 (i32.const 1)))
        (else (local.set 0 (i32.mul (local.get 0) (i32.const 3)))))";
    guest.extra = (0..60)
        .map(|_| format!("(func (param i32) {})", branch.repeat(12_000)))
        .collect::<String>();
    let wasm = guest.wasm();
    let cpu =
        Lab::with(child(), Limits { compile_cpu_s: 1, upload_bytes: 64 << 20, ..Lab::limits() });
    let error = cpu.load(&wasm).expect_err("it takes longer");
    assert_eq!(error.to_string(), "compile: took more than 1 seconds of CPU time");
    let memory = Limits { compile_memory_bytes: 64 << 20, ..cpu.engine.limits().clone() };
    let error = Lab::with(child(), memory).load(&wasm).expect_err("it needs more");
    assert!(matches!(error.code(), "compile" | "runtime"), "{error}");
    let wall = Limits { compile_wall_ms: 300, ..cpu.engine.limits().clone() };
    let error = Lab::with(child(), Limits { compile_cpu_s: 60, ..wall }).load(&wasm);
    assert_eq!(error.expect_err("killed").to_string(), "compile: took longer than 300 ms");
    assert_eq!(cpu.engine.stats().compiles_failed, 1);
    assert!(compiled_files(&cpu).is_empty(), "nothing is left of a failed compile");
}

#[test]
fn a_missing_compiler_is_the_hosts_fault() {
    let program = PathBuf::from("/nonexistent/foldmq");
    let lab = Lab::with(Compiler::Child { program, args: Vec::new() }, Lab::limits());
    let error = lab.load(&Guest::new().wasm()).expect_err("nothing to run");
    assert_eq!((error.code(), error.blame()), ("io", crate::fold::Blame::Host));
}

#[test]
fn a_second_engine_finds_the_code_on_disk_without_the_bytes() {
    let lab = Lab::new();
    let hash = lab.module(&Guest::new()).hash();
    let later = engine_in(&lab.dir, Compiler::InProcess, Lab::limits());
    assert!(later.cached(&hash).is_none());
    let source = || async { Err::<Vec<u8>, _>("nobody should ask") };
    let module = block_on(later.load(hash, source)).expect("from disk");
    done(module.start(&context(), &batch()).expect("it runs"));
    assert!(later.cached(&hash).is_some());
    assert_eq!((later.stats().disk_hits, later.stats().compiles), (1, 0));
}

#[test]
fn changed_code_on_disk_is_never_run() {
    let lab = Lab::new();
    let guest = Guest::new();
    lab.module(&guest);
    let files = compiled_files(&lab);
    let code = files.iter().find(|path| path.extension().is_some_and(|it| it == "cwasm"));
    let code = code.expect("compiled code");
    let mut bytes = fs::read(code).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let replaced = code.with_extension("new");
    fs::write(&replaced, &bytes).expect("writable");
    fs::rename(&replaced, code).expect("a rename");
    let later = engine_in(&lab.dir, Compiler::InProcess, Lab::limits());
    let wasm = guest.wasm();
    let module = block_on(later.load(ModuleHash::of(&wasm), || async { Ok::<_, Error>(wasm) }));
    done(module.expect("compiled anew").start(&context(), &batch()).expect("it runs"));
    assert_eq!((later.stats().disk_hits, later.stats().compiles), (0, 1));
}

#[test]
fn callers_at_once_share_one_compile_and_one_refusal() {
    let lab = Lab::new();
    let asked = AtomicU32::new(0);
    let load = |wasm: Vec<u8>| {
        let asked = &asked;
        let hash = ModuleHash::of(&wasm);
        lab.engine.load(hash, move || async move {
            asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok::<_, Error>(wasm)
        })
    };
    let good = Guest::new().wasm();
    let bad = wat::parse_str("(module)").expect("a module");
    block_on(async {
        let (a, b, c) = tokio::join!(load(good.clone()), load(good.clone()), load(good.clone()));
        let modules = [a, b, c].map(|module| module.expect("it loads"));
        assert!(Arc::ptr_eq(&modules[0], &modules[1]) && Arc::ptr_eq(&modules[1], &modules[2]));
        let (a, b) = tokio::join!(load(bad.clone()), load(bad.clone()));
        assert_eq!(a.expect_err("refused").code(), "module_export");
        assert_eq!(b.expect_err("refused").code(), "module_export");
    });
    assert_eq!((asked.load(Ordering::Relaxed), lab.engine.stats().compiles), (2, 1));
}

#[test]
fn bytes_of_another_hash_are_refused() {
    let lab = Lab::new();
    let wasm = Guest::new().wasm();
    let load = lab.engine.load(ModuleHash::of(b"other"), || async { Ok::<_, Error>(wasm) });
    let error = block_on(load).expect_err("not these");
    assert_eq!((error.code(), error.blame()), ("corrupt", crate::fold::Blame::Host));
    let none = lab.engine.load(ModuleHash::of(b"other"), || async { Err("no such row") });
    let error = block_on(none).expect_err("no bytes");
    let source = std::error::Error::source(&error).expect("a cause");
    assert_eq!((error.code(), source.to_string().as_str()), ("source", "no such row"));
}

#[test]
fn memory_and_disk_are_bounded() {
    let limits = Limits { modules_in_memory: 2, disk_cache_bytes: 1, ..Lab::limits() };
    let lab = Lab::with(Compiler::InProcess, limits);
    let modules: Vec<_> = (0..4)
        .map(|n| {
            let mut guest = Guest::new();
            guest.extra = format!("(global $n i32 (i32.const {n}))");
            lab.module(&guest)
        })
        .collect();
    assert_eq!(lab.engine.stats().modules_in_memory, 2);
    assert_eq!(compiled_files(&lab).len(), 2, "the newest stays");
    for module in &modules {
        done(module.start(&context(), &batch()).expect("what is held still runs"));
    }
}

#[test]
fn the_ticker_ends_with_the_engine() {
    let lab = Lab::new();
    let module = lab.module(&Guest::starting("(loop $l (br $l)) (unreachable)"));
    let Lab { engine, dir } = lab;
    drop(engine);
    let error = module.start(&context(), &batch()).expect_err("the clock still runs");
    assert_eq!(error.code(), "deadline");
    drop((module, dir));
}
