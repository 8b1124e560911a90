-- Maintenance: switches that all brokers share, and the spool of pushes taken in meanwhile.

create table foldmq.switches (
  name text primary key check (name in ('push', 'pop')),
  enabled boolean not null,
  updated_at timestamptz not null default clock_timestamp()
);
comment on table foldmq.switches is 'Maintenance switches: persisted, shared by all brokers.';

create table foldmq.spool (
  id bigint generated always as identity primary key,
  tenant_id uuid not null,
  queue text not null,
  partition text not null,
  message_id uuid not null,
  transaction_id text,
  producer_sub text,
  payload bytea not null,
  spooled_at timestamptz not null default clock_timestamp()
);
comment on table foldmq.spool is 'Pushes accepted during push maintenance, replayed oldest first and removed in the same transaction.';
