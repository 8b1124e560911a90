//! A server in the test process, on a database of its own, with real HTTP.

use std::path::PathBuf;
use std::sync::Arc;

use foldmq::fold::Compiler;
use foldmq::server::{Config, Server, Store};

use super::database::scratch;
use super::{Client, Database};

/// A running server; dropped without `stop` it ends with the test's runtime.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) database: Arc<Database>,
}

/// The configuration of a test server on a database.
pub(crate) fn config(database: &Database) -> Config {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let mut config = Config::new(listen, Store::Url(database.url())).expect("a configuration");
    config.pool_size = 6;
    config.compiled_dir = scratch().join("compiled");
    config.compiler = Compiler::Child {
        program: PathBuf::from(env!("CARGO_BIN_EXE_foldmq")),
        args: vec!["compile-module".to_owned()],
    };
    config
}

impl TestServer {
    /// A server on a fresh database.
    pub(crate) async fn start() -> Self {
        Self::on(Arc::new(Database::new().await)).await
    }

    /// A server on a given database: several may share one.
    pub(crate) async fn on(database: Arc<Database>) -> Self {
        Self::with(database, |_| {}).await
    }

    /// A server with changed settings.
    pub(crate) async fn with(database: Arc<Database>, change: impl FnOnce(&mut Config)) -> Self {
        // Silent unless somebody looks: RUST_LOG=foldmq=debug.
        let filter = std::env::var("RUST_LOG").unwrap_or_else(|_unset| "off".to_owned());
        foldmq::telemetry::init(&filter, foldmq::telemetry::LogFormat::Text);
        let mut config = config(&database);
        change(&mut config);
        let server = Server::start(config).await.expect("the server starts");
        Self { server, database }
    }

    /// A client of this server.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.server.url())
    }

    /// Stops in order.
    pub(crate) async fn stop(self) {
        self.server.stop().await.expect("the server stops");
    }
}
