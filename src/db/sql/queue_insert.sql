-- Creates a queue unless it exists; gives the row either way.
-- $1 id, $2 tenant, $3 name, $4 namespace, $5 task, $6..$17 options as columns, $18 options.
with made as (
  insert into queen.queues (id, tenant_id, name, namespace, task, lease_time_s, retry_limit,
      dead_letter, delayed_processing_s, window_buffer_s, min_pop_wait_ms, dedup_window_s,
      retention_enabled, retention_s, completed_retention_s, max_wait_time_s, encryption_enabled,
      options)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
    on conflict (tenant_id, name) do nothing
    returning *)
select * from made
union all
select * from queen.queues where tenant_id = $2 and name = $3 and not exists (select from made)
