//! Modules: upload and loading.

use std::sync::Arc;

use super::Handle;
use crate::db;
use crate::db::module::ModuleRow;
use crate::fold::{self, Module, ModuleHash, UploadError};
use crate::types::id::TenantId;

/// What an upload did.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// The module as stored.
    pub row: ModuleRow,
    /// Whether it was not there before.
    pub fresh: bool,
}

/// Why a module was refused or could not be stored; nothing is stored then.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// Refused before it was compiled.
    #[error(transparent)]
    Refused(UploadError),
    /// It does not compile, or does not describe itself.
    #[error(transparent)]
    Fold(fold::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] db::Error),
}

/// Why the store gave no bytes for a module.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error(transparent)]
    Store(#[from] db::Error),
    #[error("module {0} is not in the store")]
    Missing(ModuleHash),
}

impl Handle {
    /// Checks, compiles and stores a module; it is named by the SHA-256 of these bytes.
    ///
    /// # Errors
    /// Any [`ModuleError`]; nothing is stored then.
    pub async fn upload(&self, tenant: TenantId, bytes: Vec<u8>) -> Result<Uploaded, ModuleError> {
        let hash = ModuleHash::of(&bytes);
        let db = self.shared.broker.db();
        if let Some(row) = db.module_list(tenant, Some(hash.as_bytes())).await?.pop() {
            return Ok(Uploaded { row, fresh: false });
        }
        let engine = self.shared.engine.clone();
        let bytes = Arc::new(bytes);
        let checked = Arc::clone(&bytes);
        let verdict = tokio::task::spawn_blocking(move || engine.check(&checked)).await;
        match verdict {
            Ok(Ok(_)) => {}
            Ok(Err(refused)) => return Err(ModuleError::Refused(refused)),
            Err(cause) => std::panic::resume_unwind(cause.into_panic()),
        }
        let source = Arc::clone(&bytes);
        let module = self
            .shared
            .engine
            .load(hash, async move || Ok::<_, SourceError>(source.to_vec()))
            .await
            .map_err(ModuleError::Fold)?;
        let permit = self.shared.permits.acquire().await.expect("the semaphore is never closed");
        let described = tokio::task::spawn_blocking(move || module.describe("")).await;
        drop(permit);
        let manifest = match described {
            Ok(manifest) => manifest.map_err(ModuleError::Fold)?,
            Err(cause) => std::panic::resume_unwind(cause.into_panic()),
        };
        let shown = serde_json::to_value(&*manifest).expect("a manifest is plain data");
        let fresh = db
            .module_insert(
                tenant,
                hash.as_bytes(),
                &manifest.name,
                &manifest.version,
                &shown,
                &bytes,
            )
            .await?;
        let row = db.module_list(tenant, Some(hash.as_bytes())).await?.pop().ok_or_else(|| {
            db::Error::Unavailable("the module was deleted while it was uploaded".into())
        })?;
        Ok(Uploaded { row, fresh })
    }

    /// The compiled module, from memory, disk, or the bytes in the store.
    pub(super) async fn module(
        &self,
        tenant: TenantId,
        hash: ModuleHash,
    ) -> Result<Arc<Module>, fold::Error> {
        let db = self.shared.broker.db().clone();
        let source = async move || {
            let bytes = db.module_bytes(tenant, hash.as_bytes()).await?;
            bytes.ok_or(SourceError::Missing(hash))
        };
        self.shared.engine.load(hash, source).await
    }
}
