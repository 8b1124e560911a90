//! Compiles a component to machine code, in a child process that may die of it.
//!
//! A compile can't be interrupted, and a small module can be made to cost minutes and gigabytes. So
//! one runs at a time, in a process that limits its own CPU time, address space and output before
//! it reads a byte, gets nothing of the server's environment, and is killed when its time is over
//! or its caller is gone.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitCode, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use nix::{
    libc,
    sys::resource::{Resource, setrlimit},
};
use tempfile::TempPath;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    sync::Semaphore,
};

use super::{
    disk::temporary,
    engine::{Compiler, blocking, settings},
    error::{ErrorKind, Result, io as failed},
    limits::{Limits, cut, storable},
};

/// Stack of a compiling thread. Deeply nested code costs the compiler stack; address space that is
/// not touched is free.
const STACK_BYTES: usize = 256 << 20;
/// Bytes of the child's complaints that are kept.
const COMPLAINT_BYTES: u64 = 16 << 10;
/// Cores from which a compile may use several of them.
const CORES_FOR_PARALLEL: usize = 4;
/// Exit codes of the child: the module is at fault, or the host is.
const REFUSED: u8 = 1;
const HOST_FAILED: u8 = 3;

/// Compiles components, one at a time.
pub(super) struct Runner {
    compiler: Compiler,
    limits: Limits,
    one_at_a_time: Semaphore,
}

impl Runner {
    pub(super) fn new(compiler: Compiler, limits: &Limits) -> Self {
        Self { compiler, limits: limits.clone(), one_at_a_time: Semaphore::new(1) }
    }

    /// Compiles a component into a new file of the directory.
    pub(super) async fn compile(&self, component: Vec<u8>, dir: Arc<Path>) -> Result<TempPath> {
        let _turn = self.one_at_a_time.acquire().await;
        match &self.compiler {
            Compiler::InProcess => {
                let limits = self.limits.clone();
                blocking(move || compile_here(component, &dir, limits)).await
            }
            Compiler::Child { program, args } => {
                let (input, output) = blocking(move || {
                    let mut input = temporary(&dir)?;
                    input.write_all(&component).map_err(failed("could not write a component"))?;
                    Ok((input.into_temp_path(), temporary(&dir)?.into_temp_path()))
                })
                .await?;
                let mut command = Command::new(program);
                command.args(args).arg(&input).arg(&output).args(self.child_limits());
                self.run(command).await.map(|()| output)
            }
        }
    }

    /// The limits as arguments, in the order that [`Job::parse`] reads.
    fn child_limits(&self) -> [String; 3] {
        let limits = &self.limits;
        [limits.compile_cpu_s, limits.compile_memory_bytes, limits.compiled_bytes]
            .map(|limit| limit.to_string())
    }

    async fn run(&self, mut command: Command) -> Result<()> {
        let threads = cores().div_ceil(2).to_string();
        let mut child = command
            .env_clear()
            .env("RAYON_NUM_THREADS", threads)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed("could not start the compiler process"))?;
        let patience = Duration::from_millis(self.limits.compile_wall_ms);
        let Ok(end) = tokio::time::timeout(patience, complaint_and_status(&mut child)).await else {
            // Waits for the end as well, so that no zombie is left.
            child.kill().await.map_err(failed("could not stop the compiler process"))?;
            let limit = self.limits.compile_wall_ms;
            return Err(ErrorKind::Compile(format!("took longer than {limit} ms")).into());
        };
        let (complaint, status) = end.map_err(failed("could not wait for the compiler process"))?;
        match self.verdict(&complaint, status) {
            None => Ok(()),
            Some(kind) => Err(kind.into()),
        }
    }

    fn verdict(&self, complaint: &str, status: ExitStatus) -> Option<ErrorKind> {
        if status.success() {
            return None;
        }
        let limits = &self.limits;
        let complaint = storable(cut(complaint.trim(), limits.text_bytes));
        if status.code() == Some(HOST_FAILED.into()) {
            return Some(ErrorKind::Runtime(format!("the compiler process failed: {complaint}")));
        }
        let text = match status.signal() {
            Some(libc::SIGXCPU | libc::SIGKILL) => {
                format!("took more than {} seconds of CPU time", limits.compile_cpu_s)
            }
            Some(libc::SIGXFSZ) => {
                format!("gives more than {} bytes of code", limits.compiled_bytes)
            }
            Some(_) if complaint.contains("memory allocation of") => {
                format!("needs more than {} bytes of memory", limits.compile_memory_bytes)
            }
            Some(signal) => format!("the compiler crashed with signal {signal}: {complaint}"),
            None => complaint,
        };
        Some(ErrorKind::Compile(text))
    }
}

async fn complaint_and_status(child: &mut Child) -> io::Result<(String, ExitStatus)> {
    let mut complaint = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What goes beyond meets a closed pipe.
        stderr.take(COMPLAINT_BYTES).read_to_end(&mut complaint).await?;
    }
    Ok((String::from_utf8_lossy(&complaint).into_owned(), child.wait().await?))
}

fn compile_here(component: Vec<u8>, dir: &Path, limits: Limits) -> Result<TempPath> {
    let output = temporary(dir)?.into_temp_path();
    let code =
        on_large_stack(move || precompile(&component, &limits))?.map_err(ErrorKind::Compile)?;
    fs::write(&output, code).map_err(failed("could not write compiled code"))?;
    Ok(output)
}

/// The machine code of a component, or the compiler's reason.
fn precompile(component: &[u8], limits: &Limits) -> Result<Vec<u8>, String> {
    let mut config = settings(limits);
    config.parallel_compilation(cores() >= CORES_FOR_PARALLEL);
    let engine = wasmtime::Engine::new(&config).map_err(|error| format!("{error:#}"))?;
    engine.precompile_component(component).map_err(|error| format!("{error:#}"))
}

/// Runs a compile on a thread of its own. A panic of the compiler becomes an error.
fn on_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<Result<T, String>> {
    let thread = thread::Builder::new().name("fold-compile".to_owned()).stack_size(STACK_BYTES);
    let thread = thread.spawn(work).map_err(failed("could not start a compiling thread"))?;
    Ok(thread.join().unwrap_or_else(|_| Err("the compiler panicked".to_owned())))
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The whole life of a compiling process; `args` is what follows the program's own arguments.
///
/// Limits itself, compiles the one file into the other, and says on standard error what went wrong.
pub fn child_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (code, complaint) = match Job::parse(args) {
        Some(job) => match job.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => failure,
        },
        None => (HOST_FAILED, "expected INPUT OUTPUT CPU_SECONDS MEMORY_BYTES OUTPUT_BYTES".into()),
    };
    // Nobody reads it if the server is gone.
    drop(writeln!(io::stderr(), "{complaint}"));
    ExitCode::from(code)
}

struct Job {
    input: OsString,
    output: OsString,
    cpu_s: u64,
    memory_bytes: u64,
    output_bytes: u64,
}

impl Job {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut args = args.into_iter();
        let (input, output) = (args.next()?, args.next()?);
        let mut number = || args.next()?.to_str()?.parse().ok();
        let [cpu_s, memory_bytes, output_bytes] = [number()?, number()?, number()?];
        Some(Self { input, output, cpu_s, memory_bytes, output_bytes })
    }

    fn run(self) -> Result<(), (u8, String)> {
        let host =
            |what: &str, error: &dyn std::fmt::Display| (HOST_FAILED, format!("{what}: {error}"));
        self.limit_process().map_err(|error| host("limits", &error))?;
        let component = fs::read(&self.input).map_err(|error| host("input", &error))?;
        let code = on_large_stack(move || precompile(&component, &Limits::default()))
            .map_err(|error| host("thread", &error))?
            .map_err(|text| (REFUSED, text))?;
        fs::write(&self.output, code).map_err(|error| host("output", &error))
    }

    /// The hard limit of CPU time is a little above the soft one, whose signal says what happened.
    fn limit_process(&self) -> nix::Result<()> {
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        setrlimit(Resource::RLIMIT_CPU, self.cpu_s, self.cpu_s.saturating_add(1))?;
        setrlimit(Resource::RLIMIT_FSIZE, self.output_bytes, self.output_bytes)?;
        setrlimit(Resource::RLIMIT_AS, self.memory_bytes, self.memory_bytes)
    }
}
