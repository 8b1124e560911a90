//! Registration of queries.

use jiff::Timestamp;
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::{Db, Error};
use crate::types::cycle::Timers;
use crate::types::id::{QueryNo, TenantId};

/// A registered query.
#[derive(Clone, Debug)]
pub struct Query {
    /// Number in the store.
    pub no: QueryNo,
    /// Wire id.
    pub id: Uuid,
    /// Owner.
    pub tenant: TenantId,
    /// Name, unique within the tenant.
    pub name: String,
    /// Queue that it reads.
    pub source_queue: String,
    /// Queue that its workers write, if named.
    pub sink_queue: Option<String>,
    /// Hash of the operator chain or of the module.
    pub config_hash: String,
    /// When it was registered.
    pub created_at: Timestamp,
    /// When it was last registered.
    pub updated_at: Timestamp,
}

impl Query {
    pub(super) fn from_row(row: &Row) -> Self {
        Self {
            no: QueryNo(row.get("query_no")),
            id: row.get("id"),
            tenant: TenantId(row.get("tenant_id")),
            name: row.get("name"),
            source_queue: row.get("source_queue"),
            sink_queue: row.get("sink_queue"),
            config_hash: row.get("config_hash"),
            created_at: row.get("created_at"),
            updated_at: row.get("updated_at"),
        }
    }

    /// Consumer group of the query's workers (streams K2).
    #[must_use]
    pub fn group(&self) -> String {
        format!("streams.{}", self.name)
    }
}

/// What a hosted registration adds.
#[derive(Clone, Debug)]
pub struct HostedSpec {
    /// SHA-256 of the module.
    pub module_hash: [u8; 32],
    /// JSON text of the parameters, empty where none were given.
    pub params: String,
    /// Where the group starts, as registered.
    pub start: serde_json::Value,
    /// Messages a batch.
    pub batch: i32,
    /// `dead_letter` or `pause`.
    pub on_poison: String,
    /// Queues that the fold may emit to.
    pub sinks: Vec<String>,
    /// What due times are compared with.
    pub timers: Timers,
    /// Silence after which the clock becomes the watermark, ms.
    pub idle_ms: i32,
    /// Whether it starts paused.
    pub paused: bool,
}

/// A registration.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Owner.
    pub tenant: TenantId,
    /// Name.
    pub name: String,
    /// Queue that it reads.
    pub source_queue: String,
    /// Queue that its workers write.
    pub sink_queue: Option<String>,
    /// Hash of the operator chain or of the module.
    pub config_hash: String,
    /// Delete the state when the hash differs.
    pub reset: bool,
    /// Present for a hosted query.
    pub hosted: Option<HostedSpec>,
}

/// What a registration did.
#[derive(Clone, Debug)]
pub enum Registered {
    /// Inserted.
    Fresh(Query),
    /// Equal hash: queues overwritten, state kept.
    Kept(Query),
    /// Other hash with `reset`: state deleted.
    Reset(Query),
    /// Other hash without `reset`: nothing changed.
    Conflict(Query),
    /// The tenant may not register new queries.
    NotGranted,
    /// The tenant's cap is full.
    CapReached(i32),
}

impl Db {
    /// Registers a query: one transaction, idempotent on the name (streams Q10-Q32).
    ///
    /// # Errors
    /// When the store fails; nothing is changed then.
    pub async fn query_register(&self, r: &Registration) -> Result<Registered, Error> {
        self.session(async || {
            loop {
                let mut client = self.pool.get().await?;
                let outcome = register_once(&mut client, r).await;
                // A concurrent first registration won: judge against the winner (Q31).
                let Some(outcome) = super::give_back(client, outcome)? else { continue };
                return Ok(outcome);
            }
        })
        .await
    }

    /// A query by its wire id.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn query_find(&self, tenant: TenantId, id: Uuid) -> Result<Option<Query>, Error> {
        let row = self.query_opt(include_str!("sql/query_find.sql"), &[&id, &tenant.0]).await?;
        Ok(row.as_ref().map(Query::from_row))
    }

    /// Queries of a tenant by name; `None` lists all.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn query_list(
        &self,
        tenant: TenantId,
        name: Option<&str>,
    ) -> Result<Vec<Query>, Error> {
        let rows = self.query(include_str!("sql/query_list.sql"), &[&tenant.0, &name]).await?;
        Ok(rows.iter().map(Query::from_row).collect())
    }

    /// Deletes a query with its state, cursors and registration of its group.
    ///
    /// # Errors
    /// When the store fails; nothing is deleted then.
    pub async fn query_delete(&self, query: &Query) -> Result<(), Error> {
        self.session(async || {
            let mut client = self.pool.get().await?;
            let outcome = delete_once(&mut client, query).await;
            super::give_back(client, outcome)
        })
        .await
    }
}

/// One attempt at a registration; `None` where somebody else was first with the name.
async fn register_once(client: &mut Client, r: &Registration) -> Result<Option<Registered>, Error> {
    let txn = client.transaction().await?;
    let found = txn.query_opt(include_str!("sql/query_lock.sql"), &[&r.tenant.0, &r.name]).await?;
    let outcome = match found {
        Some(row) => Some(register_again(&txn, r, Query::from_row(&row)).await?),
        None => register_new(&txn, r).await?,
    };
    if let Some(Registered::Fresh(q) | Registered::Kept(q) | Registered::Reset(q)) = &outcome {
        if let Some(spec) = &r.hosted {
            hosted_upsert(&txn, q.no, spec).await?;
        }
        txn.commit().await?;
    }
    Ok(outcome)
}

async fn delete_once(client: &mut Client, query: &Query) -> Result<(), Error> {
    let txn = client.transaction().await?;
    txn.query(include_str!("sql/query_hold.sql"), &[&query.no.0]).await?;
    txn.query(include_str!("sql/shards_lock.sql"), &[&query.no.0]).await?;
    txn.execute(include_str!("sql/state_clear.sql"), &[&query.no.0]).await?;
    txn.execute(include_str!("sql/query_delete.sql"), &[&query.no.0]).await?;
    txn.execute(
        include_str!("sql/group_delete.sql"),
        &[&query.tenant.0, &query.source_queue, &query.group()],
    )
    .await?;
    txn.commit().await?;
    Ok(())
}

async fn register_new(
    txn: &Transaction<'_>,
    r: &Registration,
) -> Result<Option<Registered>, Error> {
    if r.tenant != TenantId::DEFAULT {
        let quota = txn.query_opt(include_str!("sql/quota_lock.sql"), &[&r.tenant.0]).await?;
        match quota {
            Some(row) if row.get::<_, bool>("enabled") => {
                if let Some(cap) = row.get::<_, Option<i32>>("max_queries") {
                    let count: i64 = txn
                        .query_one(include_str!("sql/query_count.sql"), &[&r.tenant.0])
                        .await?
                        .get("n");
                    if count >= i64::from(cap) {
                        return Ok(Some(Registered::CapReached(cap)));
                    }
                }
            }
            _ => return Ok(Some(Registered::NotGranted)),
        }
    }
    let row = txn
        .query_opt(
            include_str!("sql/query_insert.sql"),
            &[
                &Uuid::now_v7(),
                &r.tenant.0,
                &r.name,
                &r.source_queue,
                &r.sink_queue,
                &r.config_hash,
            ],
        )
        .await?;
    Ok(row.map(|row| Registered::Fresh(Query::from_row(&row))))
}

async fn register_again(
    txn: &Transaction<'_>,
    r: &Registration,
    found: Query,
) -> Result<Registered, Error> {
    let same = found.config_hash == r.config_hash;
    if !same && !r.reset {
        return Ok(Registered::Conflict(found));
    }
    if !same {
        txn.query(include_str!("sql/query_hold.sql"), &[&found.no.0]).await?;
        txn.query(include_str!("sql/shards_lock.sql"), &[&found.no.0]).await?;
        txn.execute(include_str!("sql/state_clear.sql"), &[&found.no.0]).await?;
        txn.execute(include_str!("sql/shards_reset.sql"), &[&found.no.0]).await?;
        if r.hosted.is_none() {
            txn.execute(include_str!("sql/hosted_drop.sql"), &[&found.no.0]).await?;
        }
    }
    let row = txn
        .query_one(
            include_str!("sql/query_update.sql"),
            &[&found.no.0, &r.source_queue, &r.sink_queue, &r.config_hash],
        )
        .await?;
    let query = Query::from_row(&row);
    Ok(if same { Registered::Kept(query) } else { Registered::Reset(query) })
}

async fn hosted_upsert(txn: &Transaction<'_>, no: QueryNo, spec: &HostedSpec) -> Result<(), Error> {
    let state = if spec.paused { "paused" } else { "running" };
    txn.execute(
        include_str!("sql/hosted_upsert.sql"),
        &[
            &no.0,
            &spec.module_hash.as_slice(),
            &spec.params,
            &spec.start,
            &spec.batch,
            &spec.on_poison,
            &spec.sinks,
            &spec.timers.as_str(),
            &spec.idle_ms,
            &state,
        ],
    )
    .await?;
    Ok(())
}
