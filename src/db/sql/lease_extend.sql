-- Extends a live lease on the cursors of a tenant; never shortens.
-- $1 lease, $2 pids (null: search all), $3 seconds, $4 tenant.
update queen.log_consumers c
   set lease_expires_at = greatest(c.lease_expires_at,
                                   clock_timestamp() + make_interval(secs => $3::bigint))
  from queen.log_partitions p join queen.queues q using (queue_no)
 where p.pid = c.pid and q.tenant_id = $4
   and c.lease_id = $1 and c.lease_expires_at >= clock_timestamp()
   and ($2::bigint[] is null or c.pid = any ($2))
returning c.lease_expires_at
