//! Uploaded modules.

use jiff::Timestamp;

use super::{Db, Error};
use crate::types::id::TenantId;

/// A module without its bytes.
#[derive(Clone, Debug)]
pub struct ModuleRow {
    /// SHA-256 of the uploaded bytes.
    pub hash: Vec<u8>,
    /// Name of its own description.
    pub name: String,
    /// Version of its own description.
    pub version: String,
    /// Its own description.
    pub manifest: serde_json::Value,
    /// Size as uploaded, bytes.
    pub size_bytes: i32,
    /// When it was uploaded first.
    pub created_at: Timestamp,
    /// Queries that run it.
    pub queries: Vec<String>,
}

impl Db {
    /// Stores a module; whether it is new.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn module_insert(
        &self,
        tenant: TenantId,
        hash: &[u8; 32],
        name: &str,
        version: &str,
        manifest: &serde_json::Value,
        bytes: &[u8],
    ) -> Result<bool, Error> {
        let size = i32::try_from(bytes.len()).expect("an upload is bounded");
        let row = self
            .query_opt(
                include_str!("sql/module_insert.sql"),
                &[&tenant.0, &hash.as_slice(), &name, &version, &manifest, &size, &bytes],
            )
            .await?;
        Ok(row.is_some())
    }

    /// Modules of a tenant, newest first; one of them if a hash is given.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn module_list(
        &self,
        tenant: TenantId,
        hash: Option<&[u8; 32]>,
    ) -> Result<Vec<ModuleRow>, Error> {
        let hash = hash.map(<[u8; 32]>::as_slice);
        let rows = self.query(include_str!("sql/module_list.sql"), &[&tenant.0, &hash]).await?;
        Ok(rows
            .iter()
            .map(|row| ModuleRow {
                hash: row.get("hash"),
                name: row.get("name"),
                version: row.get("version"),
                manifest: row.get("manifest"),
                size_bytes: row.get("size_bytes"),
                created_at: row.get("created_at"),
                queries: row.get("queries"),
            })
            .collect())
    }

    /// The bytes of a module.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn module_bytes(
        &self,
        tenant: TenantId,
        hash: &[u8; 32],
    ) -> Result<Option<Vec<u8>>, Error> {
        let row = self
            .query_opt(include_str!("sql/module_bytes.sql"), &[&tenant.0, &hash.as_slice()])
            .await?;
        Ok(row.map(|row| row.get("bytes")))
    }

    /// Deletes a module that no query runs; whether it did.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn module_delete(&self, tenant: TenantId, hash: &[u8; 32]) -> Result<bool, Error> {
        let row = self
            .query_opt(include_str!("sql/module_delete.sql"), &[&tenant.0, &hash.as_slice()])
            .await?;
        Ok(row.is_some())
    }
}
