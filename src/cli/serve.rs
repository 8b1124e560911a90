//! `foldmq serve`: the broker, until a signal ends it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{AuthArgs, ListenArgs, SealArgs, StoreArgs};
use crate::server::{Config, Server};

/// Arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  foldmq serve
  foldmq serve --data-dir ./data --listen 127.0.0.1:7000
  DATABASE_URL=postgres://me@db.example/queue foldmq serve")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    auth: AuthArgs,
    #[command(flatten)]
    seal: SealArgs,
    /// Serve without authentication on an address that other machines can reach.
    #[arg(long, env = "FOLDMQ_ALLOW_OPEN")]
    allow_open: bool,
    /// Read the tenant of a request from its x-queen-tenant header. Needs --trusted-proxy.
    #[arg(long, env = "FOLDMQ_TENANCY", requires = "trusted_proxy")]
    tenancy: bool,
    /// A proxy in front of the broker overwrites x-queen-tenant on every request.
    #[arg(long, env = "FOLDMQ_TRUSTED_PROXY")]
    trusted_proxy: bool,
    /// Connections to the database for operations. [default: 2 a core, at least 4, and 2]
    #[arg(long, env = "FOLDMQ_POOL_SIZE")]
    pool_size: Option<usize>,
    /// Longest time for one statement, ms.
    #[arg(long, env = "FOLDMQ_STATEMENT_TIMEOUT_MS", default_value_t = 30_000)]
    statement_timeout_ms: u64,
    /// Largest request body, bytes.
    #[arg(long, env = "FOLDMQ_BODY_BYTES_MAX",
          default_value_t = crate::types::limits::BODY_BYTES_MAX)]
    body_bytes_max: usize,
    /// Guest calls at once. [default: cores - 1]
    #[arg(long, env = "FOLDMQ_CALLS_AT_ONCE")]
    calls_at_once: Option<usize>,
}

pub(super) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let addr = args.listen.addr();
    let auth = args.auth.auth();
    if !addr.ip().is_loopback() && !args.allow_open && auth.is_none() {
        anyhow::bail!(
            "{addr} can be reached by other machines and requests are not authenticated: listen on \
             127.0.0.1, require tokens with --jwt-algorithm, or say --allow-open"
        );
    }
    let mut config = Config::new(addr, args.store.store(None))?;
    if let Some(n) = args.pool_size {
        config.pool_size = n.max(2);
    }
    if let Some(n) = args.calls_at_once {
        config.hosted.calls_at_once = n.max(1);
    }
    config.statement_timeout = Duration::from_millis(args.statement_timeout_ms);
    config.body_bytes_max = args.body_bytes_max;
    config.tenancy = args.tenancy;
    config.auth = auth;
    config.broker.seal = args.seal.seal()?;
    let mut quit = quit_signal()?;
    let server = tokio::select! {
        server = Server::start(config) => server?,
        () = quit.recv() => return Ok(ExitCode::SUCCESS),
    };
    crate::cli::say(&format!("store: {}", server.store()));
    crate::cli::say(&format!("listening on {}", server.url()));
    quit.recv().await;
    tokio::select! {
        stopped = server.stop() => stopped.context("the broker did not stop in order")?,
        () = quit.recv() => anyhow::bail!("stopped at once by a second signal"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ctrl-C and SIGTERM.
pub(super) struct Quit {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

pub(super) fn quit_signal() -> std::io::Result<Quit> {
    Ok(Quit {
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
    })
}

impl Quit {
    /// Resolves at the next signal.
    pub(super) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
