//! Registration and life of queries.

use super::Broker;
use crate::db::Error;
use crate::db::group::Start;
use crate::db::hosted::RunState;
use crate::db::query::{Query, Registered, Registration};
use crate::types::id::TenantId;

/// What a registration did; the store's own answer.
pub type RegisterOutcome = Registered;

/// Why an operation on a query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The store failed; nothing was changed.
    #[error(transparent)]
    Store(#[from] Error),
    /// No query of that name.
    #[error("query {0:?} not found")]
    NotFound(String),
    /// The query is run by outside workers.
    #[error("query {0:?} is not hosted: outside workers run it")]
    NotHosted(String),
}

impl Broker {
    /// Registers a query (streams Q10-Q32). A hosted one also registers its group where the source
    /// queue exists; where it does not, everything pushed later is new to it anyway.
    ///
    /// # Errors
    /// When the store fails; a repeated request is safe.
    pub async fn register(
        &self,
        registration: &Registration,
        start: Option<Start>,
    ) -> Result<RegisterOutcome, Error> {
        let outcome = self.inner.db.query_register(registration).await?;
        if let Registered::Fresh(query) | Registered::Kept(query) | Registered::Reset(query) =
            &outcome
            && registration.hosted.is_some()
        {
            self.hosted_group(query, start.unwrap_or(Start::All)).await?;
            self.queries_changed();
        }
        Ok(outcome)
    }

    /// Registers the group of a hosted query on its source queue, if the queue exists.
    async fn hosted_group(&self, query: &Query, start: Start) -> Result<(), Error> {
        let queue = self.queue_find(query.tenant, &query.source_queue).await?;
        if let Some(queue) = queue {
            self.group_ensure(queue.no, &query.group(), start, false).await?;
        }
        Ok(())
    }

    /// The query of that name.
    ///
    /// # Errors
    /// [`QueryError::NotFound`], or when the store fails.
    pub async fn query_named(&self, tenant: TenantId, name: &str) -> Result<Query, QueryError> {
        let found = self.inner.db.query_list(tenant, Some(name)).await?.pop();
        found.ok_or_else(|| QueryError::NotFound(name.to_owned()))
    }

    /// Deletes a query with its state and the cursors of its group.
    ///
    /// # Errors
    /// [`QueryError::NotFound`], or when the store fails.
    pub async fn query_delete(&self, tenant: TenantId, name: &str) -> Result<(), QueryError> {
        let query = self.query_named(tenant, name).await?;
        self.inner.db.query_delete(&query).await?;
        self.inner.directory.forget_groups();
        self.queries_changed();
        Ok(())
    }

    /// Pauses or resumes a hosted query; it keeps its exact place.
    ///
    /// # Errors
    /// [`QueryError::NotFound`], [`QueryError::NotHosted`], or when the store fails.
    pub async fn query_state(
        &self,
        tenant: TenantId,
        name: &str,
        state: RunState,
        reason: Option<&str>,
    ) -> Result<(), QueryError> {
        let query = self.query_named(tenant, name).await?;
        let hosted = self.inner.db.hosted_list(Some(tenant), Some(name)).await?;
        if hosted.is_empty() {
            return Err(QueryError::NotHosted(name.to_owned()));
        }
        self.inner.db.hosted_state(query.no, state, reason).await?;
        self.queries_changed();
        Ok(())
    }
}
