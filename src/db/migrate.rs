//! Brings the schema up to date: numbered migrations once, functions when their text changes.
//!
//! Brokers that start together wait for one lock; the first does the work. The lock belongs to a
//! transaction, not to a session, so that poolers in transaction mode serve too.

use refinery::{Migration, Runner, Target};
use sha2::{Digest, Sha256};
use tokio_postgres::{Client, NoTls};

use super::Error;
use super::locks::MIGRATIONS;

const NUMBERED: &[(&str, &str)] = &[
    ("V1__store", include_str!("../../migrations/0001_store.sql")),
    ("V2__traces", include_str!("../../migrations/0002_traces.sql")),
    ("V3__maintenance", include_str!("../../migrations/0003_maintenance.sql")),
];

/// Functions in the order in which they call each other.
const FUNCTIONS: &[(&str, &str)] = &[
    ("log_push_one_v1", include_str!("../../migrations/functions/log_push_one_v1.sql")),
    ("log_push_many_v1", include_str!("../../migrations/functions/log_push_many_v1.sql")),
    (
        "log_partitions_ensure_v1",
        include_str!("../../migrations/functions/log_partitions_ensure_v1.sql"),
    ),
    ("log_claim_v1", include_str!("../../migrations/functions/log_claim_v1.sql")),
    ("log_settle_v1", include_str!("../../migrations/functions/log_settle_v1.sql")),
    ("cycles_v1", include_str!("../../migrations/functions/cycles_v1.sql")),
];

const STORAGE: &str = include_str!("../../migrations/storage_options.sql");

async fn connect(config: &tokio_postgres::Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // Ends with the client, which outlives no call.
    tokio::spawn(async move {
        if let Err(cause) = connection.await {
            tracing::debug!(%cause, "migration connection ended");
        }
    });
    Ok(client)
}

/// Runs what is missing.
pub(super) async fn run(config: &tokio_postgres::Config) -> Result<(), Error> {
    let mut guard = connect(config).await?;
    let lock = guard.transaction().await?;
    lock.execute("select pg_advisory_xact_lock($1)", &[&MIGRATIONS]).await?;
    let mut client = connect(config).await?;
    client
        .batch_execute(
            "create schema if not exists foldmq;
             create table if not exists foldmq.functions (
               name text primary key, checksum text not null,
               applied_at timestamptz not null default clock_timestamp())",
        )
        .await?;
    let migrations = NUMBERED
        .iter()
        .map(|(name, sql)| Migration::unapplied(name, sql))
        .collect::<Result<Vec<_>, _>>()
        .expect("migration names are constants");
    let mut runner = Runner::new(&migrations)
        .set_target(Target::Latest)
        .set_abort_divergent(true)
        .set_abort_missing(true);
    runner.set_migration_table_name("foldmq.migrations");
    let report =
        runner.run_async(&mut client).await.map_err(|e| Error::Unavailable(Box::new(e)))?;
    for done in report.applied_migrations() {
        tracing::info!(migration = %done, "schema migrated");
    }
    for (name, sql) in FUNCTIONS {
        apply(&mut client, name, sql, false).await?;
    }
    apply(&mut client, "storage_options", STORAGE, true).await?;
    lock.commit().await?;
    Ok(())
}

/// Applies a text whose checksum changed. `optional`: statement by statement, refusals are told.
async fn apply(client: &mut Client, name: &str, sql: &str, optional: bool) -> Result<(), Error> {
    let checksum = hex::encode(Sha256::digest(sql.as_bytes()));
    let known = client
        .query_opt("select checksum from foldmq.functions where name = $1", &[&name])
        .await?
        .map(|row| row.get::<_, String>("checksum"));
    if known.as_deref() == Some(&checksum) {
        return Ok(());
    }
    if optional {
        let text: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
        for statement in text.join("\n").split(';').filter(|part| !part.trim().is_empty()) {
            if let Err(cause) = client.batch_execute(statement).await {
                let cause = crate::telemetry::chain(&cause);
                tracing::warn!(
                    cause,
                    statement,
                    "a storage option was refused, only speed is lost"
                );
            }
        }
    }
    let txn = client.transaction().await?;
    if !optional {
        // A function whose result columns changed cannot be replaced in place.
        txn.batch_execute(&drop_statement(name)).await?;
        txn.batch_execute(sql).await?;
        txn.batch_execute(&format!(
            "do $$ declare f regprocedure; begin
               for f in select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                         where p.proname = '{name}' and n.nspname in ('queen', 'foldmq') loop
                 execute format('revoke all on function %s from public', f);
               end loop; end $$"
        ))
        .await?;
    }
    txn.execute(
        "insert into foldmq.functions (name, checksum) values ($1, $2)
         on conflict (name) do update set checksum = excluded.checksum,
           applied_at = clock_timestamp()",
        &[&name, &checksum],
    )
    .await?;
    txn.commit().await?;
    Ok(())
}

fn drop_statement(name: &str) -> String {
    format!(
        "do $$ declare f regprocedure; begin
           for f in select p.oid from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                     where p.proname = '{name}' and n.nspname in ('queen', 'foldmq') loop
             execute format('drop function %s', f);
           end loop; end $$"
    )
}
