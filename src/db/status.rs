//! Leases and dead letters as the status page counts them.

use super::message::Scope;
use super::{Db, Error};
use crate::types::id::TenantId;

/// Live leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseFigures {
    /// Leased batches.
    pub active: i64,
    /// Partitions with one.
    pub partitions: i64,
    /// Messages in them.
    pub batches: i64,
    /// Of these, settled already.
    pub acked: i64,
}

/// Dead letters by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFigures {
    /// Dead letters.
    pub total: i64,
    /// Partitions with some.
    pub partitions: i64,
    /// The most frequent reasons with their numbers.
    pub reasons: Vec<(String, i64)>,
}

impl Db {
    /// Live leases on the queues of a scope.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn lease_figures(
        &self,
        tenant: TenantId,
        scope: &Scope,
    ) -> Result<LeaseFigures, Error> {
        let sql = include_str!("sql/status_leases.sql");
        let row =
            self.query_opt(sql, &[&tenant.0, &scope.queue, &scope.namespace, &scope.task]).await?;
        Ok(row.map_or_else(LeaseFigures::default, |row| LeaseFigures {
            active: row.get("active"),
            partitions: row.get("partitions"),
            batches: row.get("batches"),
            acked: row.get("acked"),
        }))
    }

    /// Dead letters of the queues of a scope, with so many reasons at most.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn dead_figures(
        &self,
        tenant: TenantId,
        scope: &Scope,
        reasons: i64,
    ) -> Result<DeadFigures, Error> {
        let sql = include_str!("sql/status_dead.sql");
        let rows = self
            .query(sql, &[&tenant.0, &scope.queue, &scope.namespace, &scope.task, &reasons])
            .await?;
        let Some(first) = rows.first() else { return Ok(DeadFigures::default()) };
        Ok(DeadFigures {
            total: first.get("total"),
            partitions: first.get("partitions"),
            reasons: rows.iter().map(|row| (row.get("reason"), row.get("n"))).collect(),
        })
    }
}
