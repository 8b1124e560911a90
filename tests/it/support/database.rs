//! One PostgreSQL for the test run, one database a test, copied from a migrated template.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::time::Duration;

use foldmq::db::{Config, Db};
use foldmq::postgres::{Options, PrivateCluster};
use tokio::sync::OnceCell;
use tokio_postgres::NoTls;

static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();

/// The cluster of the run, or the one that `FOLDMQ_TEST_DATABASE_URL` names.
struct Cluster {
    admin: tokio_postgres::Config,
    template: String,
    // Lives as long as the process; PostgreSQL ends with it.
    _private: Option<PrivateCluster>,
}

/// Folder for what tests keep between runs.
pub(crate) fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Folder of the cluster, one a checkout. Not below the checkout: as root PostgreSQL runs as
/// another account, to which the folders above may be closed.
fn cluster_folder() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    scratch().hash(&mut hasher);
    std::env::temp_dir().join(format!("foldmq-test-{:016x}", hasher.finish()))
}

async fn cluster() -> &'static Cluster {
    CLUSTER
        .get_or_init(|| async {
            let (admin, private) = match std::env::var("FOLDMQ_TEST_DATABASE_URL") {
                Ok(url) => (url.parse().expect("a database URL"), None),
                Err(_unset) => {
                    let mut options = Options::new(cluster_folder());
                    options.max_connections = 300;
                    let cluster = PrivateCluster::start(options).await.expect("a test cluster");
                    (cluster.config(), Some(cluster))
                }
            };
            let template = format!("foldmq_test_template_{}", std::process::id());
            sweep(&admin).await;
            execute(&admin, &format!("create database {template}")).await;
            let config = Config {
                postgres: named(&admin, &template),
                pool_size: 1,
                statement_timeout: Duration::from_secs(30),
            };
            let db = Db::connect(config).await.expect("the template migrates");
            db.close();
            drop(db);
            settle(&admin, &template).await;
            Cluster { admin, template, _private: private }
        })
        .await
}

fn named(admin: &tokio_postgres::Config, name: &str) -> tokio_postgres::Config {
    let mut config = admin.clone();
    config.dbname(name);
    config
}

async fn connect(config: &tokio_postgres::Config) -> tokio_postgres::Client {
    let (client, connection) = config.connect(NoTls).await.expect("the cluster answers");
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

async fn execute(admin: &tokio_postgres::Config, sql: &str) {
    connect(admin).await.batch_execute(sql).await.expect(sql);
}

/// Drops what earlier runs left behind.
async fn sweep(admin: &tokio_postgres::Config) {
    let client = connect(admin).await;
    let rows = client
        .query("select datname from pg_database where datname like 'foldmq_test_%'", &[])
        .await
        .expect("the catalog");
    for row in rows {
        let name: String = row.get(0);
        let _ = client.batch_execute(&format!("drop database if exists {name} with (force)")).await;
    }
}

/// Waits until nobody is connected: a template in use cannot be copied.
async fn settle(admin: &tokio_postgres::Config, name: &str) {
    let client = connect(admin).await;
    super::eventually("the template is free", async || {
        let row = client
            .query_one("select count(*) from pg_stat_activity where datname = $1", &[&name])
            .await
            .expect("the activity view");
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
}

/// A database of one test.
pub(crate) struct Database {
    pub(crate) config: tokio_postgres::Config,
    name: String,
}

impl Database {
    /// A fresh copy of the migrated template.
    pub(crate) async fn new() -> Self {
        let cluster = cluster().await;
        let name = format!("foldmq_test_{}", uuid::Uuid::now_v7().simple());
        let sql = format!("create database {name} template {}", cluster.template);
        // Copies of one template wait for each other, and a lost race is an error.
        super::eventually("the template is copied", async || {
            connect(&cluster.admin).await.batch_execute(&sql).await.ok()
        })
        .await;
        Self { config: named(&cluster.admin, &name), name }
    }

    /// The database as a URL.
    pub(crate) fn url(&self) -> String {
        let host = match &self.config.get_hosts()[0] {
            tokio_postgres::config::Host::Tcp(host) => host.clone(),
            tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let user = self.config.get_user().unwrap_or("postgres");
        format!("host='{host}' port={port} user='{user}' dbname='{}'", self.name)
    }

    /// A connection for a test's own SQL.
    pub(crate) async fn sql(&self) -> tokio_postgres::Client {
        connect(&self.config).await
    }
}
