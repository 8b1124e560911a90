-- Makes a query a hosted one, or changes what it runs.
insert into foldmq.hosted_queries (query_no, module_hash, params, start, batch, on_poison, sinks,
    timers, idle_ms, state)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
  on conflict (query_no) do update
    set module_hash = excluded.module_hash, params = excluded.params, batch = excluded.batch,
        on_poison = excluded.on_poison, sinks = excluded.sinks, timers = excluded.timers,
        idle_ms = excluded.idle_ms,
        state = case when foldmq.hosted_queries.state = 'halted' then 'running'
                     else foldmq.hosted_queries.state end,
        state_reason = null, updated_at = clock_timestamp()
