-- Extends a live lease on the given cursors; never shortens. $1 lease, $2 pids (null: search all), $3 seconds.
update queen.log_consumers
   set lease_expires_at = greatest(lease_expires_at,
                                   clock_timestamp() + make_interval(secs => $3::bigint))
 where lease_id = $1 and lease_expires_at >= clock_timestamp()
   and ($2::bigint[] is null or pid = any ($2))
returning lease_expires_at
