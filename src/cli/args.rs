//! Arguments that several commands take.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::http::AuthConfig;
use crate::log::Seal;
use crate::log::seal::KeyError;
use crate::postgres::{self, default_data_dir};
use crate::server::Store;

/// Default address of the broker.
const LISTEN: &str = "127.0.0.1:6632";

/// Where the store is.
#[derive(Clone, Debug, Args)]
pub(super) struct StoreArgs {
    /// Database to use, as a URL or in libpq's key=value form. Nothing else is touched then.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub(super) database_url: Option<String>,
    /// Folder of the private PostgreSQL that is used without --database-url.
    /// [default: foldmq in the user's data folder]
    #[arg(long, env = "FOLDMQ_DATA_DIR", conflicts_with = "database_url")]
    pub(super) data_dir: Option<PathBuf>,
    /// Folder with the PostgreSQL server programs for the private store.
    #[arg(long, env = "FOLDMQ_PG_BIN")]
    pub(super) pg_bin: Option<PathBuf>,
    /// Unprivileged account that runs the private PostgreSQL when the broker runs as root.
    #[arg(long, env = "FOLDMQ_PG_USER")]
    pub(super) pg_user: Option<String>,
}

impl StoreArgs {
    /// The store that these arguments name; `default_dir` is the folder where none is given.
    #[must_use]
    pub(super) fn store(&self, default_dir: Option<PathBuf>) -> Store {
        if let Some(url) = &self.database_url {
            return Store::Url(url.clone());
        }
        let dir = self.data_dir.clone().or(default_dir).unwrap_or_else(default_data_dir);
        let mut options = postgres::Options::new(dir);
        options.bin_dir.clone_from(&self.pg_bin);
        options.user.clone_from(&self.pg_user);
        Store::Private(Box::new(options))
    }
}

/// Where to listen.
#[derive(Clone, Debug, Args)]
pub(super) struct ListenArgs {
    /// Address to listen on; port 0 picks a free one. [default: 127.0.0.1:6632]
    #[arg(long, env = "FOLDMQ_LISTEN")]
    pub(super) listen: Option<SocketAddr>,
}

impl ListenArgs {
    /// The address given, else the default one.
    ///
    /// # Panics
    /// Never: the default is an address.
    #[must_use]
    pub(super) fn addr(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| LISTEN.parse().expect("a constant address"))
    }
}

/// Authentication by bearer tokens.
#[derive(Clone, Debug, Args)]
pub(super) struct AuthArgs {
    /// Require tokens signed with HS256, HS384, HS512, RS256, RS384, RS512, EdDSA, or any of them
    /// (auto).
    #[arg(long, env = "FOLDMQ_JWT_ALGORITHM")]
    jwt_algorithm: Option<String>,
    /// Key of the HS algorithms.
    #[arg(long, env = "FOLDMQ_JWT_SECRET", hide_env_values = true)]
    jwt_secret: Option<String>,
    /// Public key of the RS algorithms or of EdDSA, as PEM.
    #[arg(long, env = "FOLDMQ_JWT_PUBLIC_KEY")]
    jwt_public_key: Option<String>,
    /// Issuer that tokens must name.
    #[arg(long, env = "FOLDMQ_JWT_ISSUER")]
    jwt_issuer: Option<String>,
    /// Audience that tokens must name.
    #[arg(long, env = "FOLDMQ_JWT_AUDIENCE")]
    jwt_audience: Option<String>,
}

impl AuthArgs {
    /// The settings; `None` where no algorithm is named.
    pub(super) fn auth(&self) -> Option<AuthConfig> {
        self.jwt_algorithm.clone().map(|algorithm| AuthConfig {
            algorithm,
            secret: self.jwt_secret.clone(),
            public_key: self.jwt_public_key.clone(),
            issuer: self.jwt_issuer.clone(),
            audience: self.jwt_audience.clone(),
        })
    }
}

/// Keys of payloads at rest.
#[derive(Clone, Debug, Args)]
pub(super) struct SealArgs {
    /// Key that seals payloads of queues with encryptionEnabled: 64 hexadecimal digits.
    #[arg(long, env = "FOLDMQ_ENCRYPTION_KEY", hide_env_values = true)]
    encryption_key: Option<String>,
    /// Older keys, comma-separated: they open what they sealed, and seal nothing.
    #[arg(long, env = "FOLDMQ_ENCRYPTION_OLD_KEYS", hide_env_values = true, value_delimiter = ',')]
    encryption_old_keys: Vec<String>,
}

impl SealArgs {
    /// The keys.
    ///
    /// # Errors
    /// For a text that is no key: a broker without the key that was meant would store plain text.
    pub(super) fn seal(&self) -> Result<Seal, KeyError> {
        let old: Vec<&str> = self.encryption_old_keys.iter().map(String::as_str).collect();
        Seal::new(self.encryption_key.as_deref(), &old)
    }
}
