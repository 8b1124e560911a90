//! The `foldmq` program.

use std::process::ExitCode;

use clap::Parser;
use foldmq::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(cause) => {
            foldmq::cli::complain(&cause);
            ExitCode::from(2)
        }
    }
}
