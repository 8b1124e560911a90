-- Every hosted query with its registration.
select q.*, h.module_hash, h.params, h.start, h.batch, h.on_poison, h.sinks, h.timers, h.idle_ms,
       h.state, h.state_reason, h.last_error, h.last_error_at, h.failures, h.dead_letters
  from foldmq.hosted_queries h join queen_streams.queries q using (query_no)
 where ($1::uuid is null or q.tenant_id = $1) and ($2::text is null or q.name = $2)
 order by q.query_no
