-- The store of FoldMQ: log, cursors, stream state, hosted folds.
--
-- Every hot key starts with the partition (pid), so that tables can be distributed by it.
-- Identity keys are used inside; the uuids that the wire shows are looked up once per broker.

-- Schema foldmq exists: the runner makes it for its own tables.
create schema queen;
create schema queen_streams;

comment on schema queen is 'Queues, partitions, log segments and cursors, under the names of the public documentation.';
comment on schema queen_streams is 'Streaming queries, their state and quotas, under the names of the public documentation.';
comment on schema foldmq is 'What only FoldMQ has: modules, hosted queries, state rows, migrations.';

create table queen.queues (
  queue_no bigint generated always as identity primary key,
  id uuid not null unique,
  tenant_id uuid not null,
  name text not null,
  namespace text not null default '',
  task text not null default '',
  lease_time_s integer not null,
  retry_limit integer not null,
  dead_letter boolean not null,
  delayed_processing_s integer not null,
  window_buffer_s integer not null,
  min_pop_wait_ms integer not null,
  dedup_window_s integer not null,
  retention_enabled boolean not null,
  retention_s integer not null,
  completed_retention_s integer not null,
  max_wait_time_s integer not null,
  encryption_enabled boolean not null,
  options jsonb not null,
  created_at timestamptz not null default clock_timestamp(),
  unique (tenant_id, name),
  check (dedup_window_s >= 0 and min_pop_wait_ms between 0 and 60000)
);
comment on table queen.queues is 'A named set of partitions with its options; identity is (tenant_id, name).';
comment on column queen.queues.options is 'All options as the configure route echoes them; the columns beside hold what statements read.';

create table queen.log_partitions (
  pid bigint primary key,
  queue_no bigint not null references queen.queues,
  name text not null,
  id uuid not null,
  next_offset bigint not null default 0,
  last_created_at timestamptz not null default '-infinity',
  last_message_id uuid not null default '00000000-0000-0000-0000-000000000000',
  created_at timestamptz not null default clock_timestamp(),
  check (next_offset >= 0)
);
comment on table queen.log_partitions is 'An ordered log inside a queue. pid is read from the wire id, which is a hash of queue id and name.';
comment on column queen.log_partitions.last_message_id is 'Id of the newest message: ids sort in offset order among messages of one millisecond.';
create index log_partitions_queue on queen.log_partitions (queue_no);
comment on index queen.log_partitions_queue is 'Partitions of a queue: the search for claimable ones, listings.';

create table queen.log_segments (
  pid bigint not null,
  first_offset bigint not null,
  n integer not null,
  raw_bytes integer not null,
  created_at timestamptz not null,
  hashes bytea not null,
  payload bytea not null,
  primary key (pid, first_offset),
  check (n > 0 and octet_length(hashes) = 16 * n)
);
comment on table queen.log_segments is 'Consecutive offsets of one partition: framed, zstd-compressed; 16 bytes of hash per frame.';
comment on column queen.log_segments.raw_bytes is 'Size of the frames before compression, bytes.';

create table queen.log_groups (
  group_no bigint generated always as identity primary key,
  queue_no bigint not null references queen.queues on delete cascade,
  name text not null,
  mode text not null check (mode in ('all', 'new', 'from')),
  start_at timestamptz,
  conflation boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  unique (queue_no, name)
);
comment on table queen.log_groups is 'Registration of a consumer group on a queue, made by its first pop and never overwritten.';

create table queen.log_consumers (
  pid bigint not null,
  group_no bigint not null,
  committed bigint not null default -1,
  batch_end bigint,
  lease_id uuid,
  lease_expires_at timestamptz,
  conflated boolean not null default false,
  retry_count integer not null default 0,
  attempt_offset bigint not null default -1,
  attempt integer not null default 0,
  total_consumed bigint not null default 0,
  last_consumed_at timestamptz,
  primary key (pid, group_no),
  check (batch_end is null or batch_end >= committed),
  check ((lease_id is null) = (lease_expires_at is null))
);
comment on table queen.log_consumers is 'Cursor of (partition, consumer group): last settled offset, the outstanding batch and its lease.';
create index log_consumers_group on queen.log_consumers (group_no);
comment on index queen.log_consumers_group is 'Cursors of a group: its deletion, lag and status reads.';

create table queen.log_dead_letters (
  pid bigint not null,
  id uuid not null,
  queue_no bigint not null,
  group_name text not null,
  first_offset bigint not null,
  message_id uuid not null,
  transaction_id text not null,
  payload bytea not null,
  producer_sub text,
  trace_id uuid,
  retry_count integer not null,
  error_message text,
  detail jsonb,
  created_at timestamptz not null,
  failed_at timestamptz not null default clock_timestamp(),
  primary key (pid, id)
);
comment on table queen.log_dead_letters is 'Snapshot of a message that a group gave up on; survives retention of the original.';
comment on column queen.log_dead_letters.first_offset is 'Offset of the message in its partition.';
comment on column queen.log_dead_letters.detail is 'For hosted folds: module, panic text, function names, log lines.';
create index log_dead_letters_queue on queen.log_dead_letters (queue_no, failed_at desc);
comment on index queen.log_dead_letters_queue is 'Dead letters of a queue, newest first.';

create table queen_streams.queries (
  query_no bigint generated always as identity primary key,
  id uuid not null unique,
  tenant_id uuid not null,
  name text not null,
  source_queue text not null,
  sink_queue text,
  config_hash text not null,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  unique (tenant_id, name)
);
comment on table queen_streams.queries is 'Registered queries; identity is (tenant_id, name).';

create table queen_streams.quota (
  tenant_id uuid primary key,
  enabled boolean not null,
  max_queries integer,
  created_at timestamptz not null default clock_timestamp()
);
comment on table queen_streams.quota is 'Grant of streams to a tenant; max_queries null means no cap.';

create table foldmq.shards (
  pid bigint not null,
  query_no bigint not null references queen_streams.queries on delete cascade,
  partition_id uuid not null,
  version bigint not null default 0,
  watermark_ms bigint,
  next_due_ms bigint,
  wake_at timestamptz,
  last_cycle_at timestamptz not null default clock_timestamp(),
  cycles bigint not null default 0,
  messages bigint not null default 0,
  emits bigint not null default 0,
  tallies jsonb not null default '{}',
  primary key (pid, query_no)
);
comment on table foldmq.shards is 'One row per (query, partition) with state: its lock, the version that fences caches, its wake time, counters.';
comment on column foldmq.shards.wake_at is 'When a broker must look at the shard although no message comes; never later than the true time.';
create index shards_wake on foldmq.shards (wake_at) where wake_at is not null;
comment on index foldmq.shards_wake is 'The deadline sweep: cost follows what is due, not how many partitions are idle.';
create index shards_query on foldmq.shards (query_no);
comment on index foldmq.shards_query is 'Shards of a query: status, reset, deletion.';

create table foldmq.state (
  pid bigint not null,
  query_no bigint not null,
  key text collate "C" not null,
  value json not null,
  window_end double precision,
  due_ms bigint,
  updated_at timestamptz not null,
  primary key (pid, query_no, key)
);
comment on table foldmq.state is 'State rows. value keeps the text as written; queen_streams.state shows it as jsonb.';
comment on column foldmq.state.window_end is 'The number at value.windowEnd, for ripeness reads.';
comment on column foldmq.state.due_ms is 'When a hosted fold wants a flush of this row, Unix ms; null for rows of outside workers.';
create index state_due on foldmq.state (pid, query_no, due_ms) where due_ms is not null;
comment on index foldmq.state_due is 'Due rows of one shard and its earliest due time.';

create view queen_streams.state as
  select q.id as query_id, h.partition_id, s.key, s.value::jsonb as value, s.updated_at
  from foldmq.state s
  join foldmq.shards h using (pid, query_no)
  join queen_streams.queries q using (query_no);
comment on view queen_streams.state is 'State rows under the names of the public documentation; open windows are readable here.';

create table foldmq.modules (
  tenant_id uuid not null,
  hash bytea not null check (octet_length(hash) = 32),
  name text not null,
  version text not null,
  manifest jsonb not null,
  size_bytes integer not null,
  bytes bytea not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (tenant_id, hash)
);
comment on table foldmq.modules is 'Uploaded WebAssembly modules by the SHA-256 of their bytes; immutable.';

create table foldmq.hosted_queries (
  query_no bigint primary key references queen_streams.queries on delete cascade,
  module_hash bytea not null,
  params text not null,
  start jsonb not null,
  batch integer not null check (batch > 0),
  on_poison text not null check (on_poison in ('dead_letter', 'pause')),
  sinks text[] not null,
  timers text not null check (timers in ('clock', 'watermark')),
  idle_ms integer not null,
  state text not null check (state in ('running', 'paused', 'halted')),
  state_reason text,
  last_error jsonb,
  last_error_at timestamptz,
  failures bigint not null default 0,
  dead_letters bigint not null default 0,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
comment on table foldmq.hosted_queries is 'Queries that brokers run themselves: module, parameters, state of the life cycle.';
