//! Traces: events that workers record about messages.

use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Db, Error};
use crate::types::id::{PartitionId, Pid, TenantId};

/// A trace to record.
#[derive(Clone, Debug)]
pub struct NewTrace {
    /// Partition of the message.
    pub pid: Pid,
    /// Id of the trace.
    pub id: Uuid,
    /// Id that acks name.
    pub transaction_id: String,
    /// Group that speaks.
    pub group: String,
    /// What happened.
    pub event_type: String,
    /// JSON text.
    pub data: String,
    /// Names to list it under, each once.
    pub names: Vec<String>,
}

/// A recorded trace.
#[derive(Clone, Debug)]
pub struct TraceRow {
    /// Id of the trace.
    pub id: Uuid,
    /// Id that acks name.
    pub transaction_id: String,
    /// What happened.
    pub event_type: String,
    /// JSON text.
    pub data: String,
    /// Group that spoke.
    pub group: String,
    /// Broker that recorded it.
    pub worker: Option<String>,
    /// When.
    pub created_at: Timestamp,
    /// Names that it is listed under.
    pub names: Vec<String>,
}

/// Where the message of a trace stands.
#[derive(Clone, Debug)]
pub struct TracePlace {
    /// Queue.
    pub queue: String,
    /// Partition.
    pub partition: String,
    /// Wire id of the partition.
    pub partition_id: PartitionId,
}

/// A name with what stands under it.
#[derive(Clone, Debug)]
pub struct TraceName {
    /// The name.
    pub name: String,
    /// Traces.
    pub traces: i64,
    /// Messages that they are about.
    pub messages: i64,
    /// The latest trace.
    pub last_seen: Timestamp,
}

impl TraceRow {
    fn from_row(row: &Row) -> Self {
        Self {
            id: row.get("id"),
            transaction_id: row.get("transaction_id"),
            event_type: row.get("event_type"),
            data: row.get("data"),
            group: row.get("consumer_group"),
            worker: row.get("worker_id"),
            created_at: row.get("created_at"),
            names: row.get("names"),
        }
    }
}

impl Db {
    /// Records a trace.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn trace_insert(
        &self,
        tenant: TenantId,
        trace: &NewTrace,
        worker: &str,
    ) -> Result<(), Error> {
        let t = trace;
        self.query(
            include_str!("sql/trace_insert.sql"),
            &[
                &t.pid.0,
                &t.id,
                &t.transaction_id,
                &t.group,
                &t.event_type,
                &t.data,
                &worker,
                &tenant.0,
                &t.names,
            ],
        )
        .await
        .map(drop)
    }

    /// The traces of a message, oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn trace_of_message(
        &self,
        pid: Pid,
        transaction_id: &str,
    ) -> Result<Vec<TraceRow>, Error> {
        let sql = include_str!("sql/trace_of_message.sql");
        let rows = self.query(sql, &[&pid.0, &transaction_id]).await?;
        Ok(rows.iter().map(TraceRow::from_row).collect())
    }

    /// A page of the traces under a name, oldest first, and how many there are.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn trace_by_name(
        &self,
        tenant: TenantId,
        name: &str,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<(TraceRow, TracePlace)>, i64), Error> {
        let sql = include_str!("sql/trace_by_name.sql");
        let rows = self.query(sql, &[&tenant.0, &name, &limit, &offset]).await?;
        let total = self.trace_count(tenant, Some(name)).await?;
        let place = |row: &Row| TracePlace {
            queue: row.get("queue"),
            partition: row.get("partition"),
            partition_id: PartitionId(row.get("partition_id")),
        };
        Ok((rows.iter().map(|row| (TraceRow::from_row(row), place(row))).collect(), total))
    }

    /// A page of the names of traces, latest first, and how many there are.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn trace_names(
        &self,
        tenant: TenantId,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<TraceName>, i64), Error> {
        let sql = include_str!("sql/trace_names.sql");
        let rows = self.query(sql, &[&tenant.0, &limit, &offset]).await?;
        let total = self.trace_count(tenant, None).await?;
        let name = |row: &Row| TraceName {
            name: row.get("name"),
            traces: row.get("traces"),
            messages: row.get("messages"),
            last_seen: row.get("last_seen"),
        };
        Ok((rows.iter().map(name).collect(), total))
    }

    async fn trace_count(&self, tenant: TenantId, name: Option<&str>) -> Result<i64, Error> {
        let sql = include_str!("sql/trace_count.sql");
        let row = self.query_opt(sql, &[&tenant.0, &name]).await?;
        Ok(row.map_or(0, |row| row.get("n")))
    }
}
