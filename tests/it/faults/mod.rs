//! Connections to PostgreSQL that break, stall, and lose answers of calls that took effect.

mod answers;
mod feed;
mod outage;
mod outside;
mod stall;

use std::sync::Arc;
use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::{Client, Database, TestServer};

/// Time for one statement of a broker behind the proxy.
const STATEMENT: Duration = Duration::from_secs(2);
/// No request may take longer, whatever the database does: some calls of the store in a row.
const REQUEST_MAX: Duration = Duration::from_secs(20);

/// A broker that reaches its database through a proxy.
struct World {
    proxy: Proxy,
    server: TestServer,
    client: Client,
}

impl World {
    async fn start() -> Self {
        Self::with(6).await
    }

    /// With this many connections for operations.
    async fn with(pool: usize) -> Self {
        let database = Arc::new(Database::new().await);
        let proxy = Proxy::before(&database).await;
        let server = TestServer::with(database, |config| {
            config.store = foldmq::server::Store::Url(proxy.url());
            config.statement_timeout = STATEMENT;
            config.pool_size = pool;
        })
        .await;
        let client = server.client();
        Self { proxy, server, client }
    }

    /// Stops the broker in order.
    async fn stop(self) {
        self.server.stop().await;
    }
}
