//! Builds every part, serves until told to stop, and stops in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::broker::{self, Broker};
use crate::db::{self, Db};
use crate::fold::{self, Compiler, Engine};
use crate::hosted;
use crate::http::{self, AppState};
use crate::postgres::{self, PrivateCluster};
use crate::telemetry::Metrics;
use crate::types::limits::BODY_BYTES_MAX;

/// How long open requests may take to end after a stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);

/// Where the store is.
#[derive(Clone, Debug)]
pub enum Store {
    /// A given database; nothing else is touched.
    Url(String),
    /// A private PostgreSQL in a folder.
    Private(Box<postgres::Options>),
}

/// Everything that a server is built from.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where the store is.
    pub store: Store,
    /// Connections for operations.
    pub pool_size: usize,
    /// Longest time for one statement.
    pub statement_timeout: Duration,
    /// Largest request body, bytes.
    pub body_bytes_max: usize,
    /// Whether a named group without a mode starts at the end.
    pub default_subscription_new: bool,
    /// Whether the tenant of a request is read from its `x-queen-tenant` header. Only behind a
    /// proxy that overwrites the header.
    pub tenancy: bool,
    /// Authentication; `None` lets every request pass.
    pub auth: Option<http::AuthConfig>,
    /// Folder of compiled modules.
    pub compiled_dir: PathBuf,
    /// What compiles modules.
    pub compiler: Compiler,
    /// Bounds of guests.
    pub limits: fold::Limits,
    /// Settings of the broker.
    pub broker: broker::Config,
    /// Settings of hosted folds.
    pub hosted: hosted::Config,
}

impl Config {
    /// Defaults for a store: 2 connections a core, modules compiled by this executable.
    ///
    /// # Errors
    /// When the path of the executable cannot be found.
    pub fn new(listen: SocketAddr, store: Store) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let compiled_dir = match &store {
            Store::Private(options) => options.data_dir.join("compiled"),
            Store::Url(_) => cache_dir().join("compiled"),
        };
        Ok(Self {
            listen,
            store,
            pool_size: (2 * cores).max(4) + 2,
            statement_timeout: Duration::from_secs(30),
            body_bytes_max: BODY_BYTES_MAX,
            default_subscription_new: true,
            tenancy: false,
            auth: None,
            compiled_dir,
            compiler: Compiler::Child {
                program: std::env::current_exe()?,
                args: vec!["compile-module".to_owned()],
            },
            limits: fold::Limits::default(),
            broker: broker::Config::default(),
            hosted: hosted::Config::default(),
        })
    }
}

/// The user's cache folder.
#[must_use]
pub fn cache_dir() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    base.join("foldmq")
}

/// Why a server did not start or stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// Authentication cannot be set up.
    #[error("authentication cannot be set up")]
    Auth(#[source] http::AuthConfigError),
    /// The URL is none.
    #[error("the database URL is not valid")]
    Url(#[source] tokio_postgres::Error),
    /// The given database does not answer.
    #[error(
        "cannot use the given database ({place}). Not falling back to a private store: that would \
         start with empty queues"
    )]
    Database {
        /// Host, port and database, without secrets.
        place: String,
        /// Why.
        #[source]
        source: db::Error,
    },
    /// The private PostgreSQL did not start or stop.
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[source] db::Error),
    /// The engine for modules cannot be set up.
    #[error("the WebAssembly engine cannot be set up")]
    Engine(#[source] fold::Error),
}

/// A running server.
pub struct Server {
    addr: SocketAddr,
    store: String,
    broker: Broker,
    hosted: hosted::Handle,
    cluster: Option<PrivateCluster>,
    quit: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    /// Starts store, broker, hosted folds and HTTP; returns when requests are served.
    ///
    /// # Errors
    /// Any [`Error`]; nothing stays running then.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let auth = config.auth.as_ref().map(http::Auth::new).transpose().map_err(Error::Auth)?;
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|source| Error::Listen(config.listen, source))?;
        let addr = listener.local_addr().map_err(|e| Error::Listen(config.listen, e))?;
        let (cluster, postgres, store) = open_store(&config.store).await?;
        let place = place_of(&postgres);
        let opened = Db::connect(db::Config {
            postgres,
            pool_size: config.pool_size,
            statement_timeout: config.statement_timeout,
        })
        .await;
        let db = match (opened, cluster.is_some()) {
            (Ok(db), _) => db,
            (Err(source), true) => return Err(Error::Store(source)),
            (Err(source), false) => return Err(Error::Database { place, source }),
        };
        let engine = Engine::new(fold::Config {
            cache_dir: config.compiled_dir,
            compiler: config.compiler,
            limits: config.limits,
            calls_at_once: config.hosted.calls_at_once,
        })
        .map_err(Error::Engine)?;
        let broker = Broker::start(db, &config.broker, Arc::new(Metrics::new()));
        let hosted = hosted::Handle::start(broker.clone(), engine, config.hosted);
        let router = http::router(AppState {
            broker: broker.clone(),
            hosted: hosted.clone(),
            body_bytes_max: config.body_bytes_max,
            default_subscription_new: config.default_subscription_new,
            tenancy: config.tenancy,
            auth,
            started: Instant::now(),
        });
        let quit = CancellationToken::new();
        let ended = quit.clone();
        let listener = listener.tap_io(|stream| {
            // Answers are small: waiting for more to send only adds latency.
            let _ = stream.set_nodelay(true);
        });
        let serving = tokio::spawn(async move {
            let serve =
                axum::serve(listener, router).with_graceful_shutdown(ended.cancelled_owned());
            if let Err(cause) = serve.await {
                tracing::error!(%cause, "the HTTP server ended");
            }
        });
        tracing::info!(%addr, store, "serving");
        Ok(Self { addr, store, broker, hosted, cluster, quit, serving })
    }

    /// Address that is listened on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Base URL of the routes.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The store in words, without secrets.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// The broker, for tools that work inside the process.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The private PostgreSQL, if there is one.
    #[must_use]
    pub fn cluster(&self) -> Option<&PrivateCluster> {
        self.cluster.as_ref()
    }

    /// Stops in order: no new work, running cycles finished, leases given back, HTTP drained,
    /// appends written, private PostgreSQL stopped.
    ///
    /// # Errors
    /// When the private PostgreSQL does not stop.
    pub async fn stop(mut self) -> Result<(), Error> {
        tracing::info!("stopping");
        self.broker.begin_stop();
        self.quit.cancel();
        self.hosted.stop().await;
        if tokio::time::timeout(DRAIN, &mut self.serving).await.is_err() {
            tracing::warn!("requests were still open after {DRAIN:?}: cut off");
            self.serving.abort();
        }
        self.broker.stop().await;
        self.broker.db().close();
        if let Some(cluster) = self.cluster.take() {
            cluster.stop().await?;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

async fn open_store(
    store: &Store,
) -> Result<(Option<PrivateCluster>, tokio_postgres::Config, String), Error> {
    match store {
        Store::Url(url) => {
            let config: tokio_postgres::Config = url.parse().map_err(Error::Url)?;
            let place = place_of(&config);
            Ok((None, config, format!("PostgreSQL at {place}")))
        }
        Store::Private(options) => {
            let cluster = PrivateCluster::start((**options).clone()).await?;
            let (config, words) = (cluster.config(), cluster.description());
            Ok((Some(cluster), config, words))
        }
    }
}

/// Host, port and database of a configuration: no user, no password.
fn place_of(config: &tokio_postgres::Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            tokio_postgres::config::Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    let ports: Vec<String> = config.get_ports().iter().map(ToString::to_string).collect();
    let name = config.get_dbname().unwrap_or("default database");
    let at = if hosts.is_empty() { "localhost".to_owned() } else { hosts.join(",") };
    if ports.is_empty() {
        format!("{at}/{name}")
    } else {
        format!("{at}:{}/{name}", ports.join(","))
    }
}
