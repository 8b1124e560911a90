//! The command line.

mod args;
mod bench;
mod demo;
mod feed;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use args::{AuthArgs, ListenArgs, SealArgs, StoreArgs};

/// A streaming broker on PostgreSQL that folds streams inside the server.
#[derive(Debug, Parser)]
#[command(name = "foldmq", version, max_term_width = 100)]
pub struct Cli {
    /// What is logged, in the syntax of RUST_LOG. [default: warn,foldmq=info; for demo: warn]
    #[arg(long, global = true, env = "RUST_LOG")]
    log: Option<String>,
    /// How log lines look.
    #[arg(long, global = true, env = "FOLDMQ_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: crate::telemetry::LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker on a given database, or on a private store of its own.
    Serve(serve::ServeArgs),
    /// Fold a month of real flights, from nothing to windows, and show how it goes.
    Demo(demo::DemoArgs),
    /// Measure this machine: pushes, cycles and folds against PostgreSQL driven directly.
    Bench(bench::BenchArgs),
    /// Compile one module; the broker starts this as a limited child process.
    #[command(hide = true, disable_help_flag = true)]
    CompileModule {
        /// Input, output, limits.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<std::ffi::OsString>,
    },
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// What the user is told, with its causes.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Command::CompileModule { args } = self.command {
            return Ok(crate::fold::child_main(args));
        }
        let usual = match &self.command {
            Command::Serve(_) => "warn,foldmq=info",
            _ => "warn",
        };
        crate::telemetry::init(self.log.as_deref().unwrap_or(usual), self.log_format);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            match self.command {
                Command::Serve(args) => serve::run(args).await,
                Command::Demo(args) => demo::run(args).await,
                Command::Bench(args) => bench::run(args).await,
                Command::CompileModule { .. } => Ok(ExitCode::SUCCESS),
            }
        })
    }
}

/// Prints a line for the user. The one place that writes to standard output.
#[expect(clippy::print_stdout, reason = "this is the command line's own voice")]
pub fn say(line: &str) {
    println!("{line}");
}

/// Prints an error with its causes to standard error.
#[expect(clippy::print_stderr, reason = "this is the command line's own voice")]
pub fn complain(cause: &anyhow::Error) {
    eprintln!("error: {cause:#}");
}
