-- Cursors whose oldest unconsumed message is older than $2 seconds, worst first. $1 tenant.
select f.group_name, q.name as queue, f.partition_name, f.partition_id, f.lag, f.oldest_at,
       f.last_consumed_at, a.lag_s
  from queen.queues q
  join queen.group_figures f using (queue_no)
  cross join lateral (
    select floor(extract(epoch from clock_timestamp() - f.oldest_at))::bigint as lag_s) a
 where q.tenant_id = $1 and f.has_cursor and f.lag > 0 and a.lag_s > $2
 order by a.lag_s desc, f.lag desc, f.group_name, q.name, f.partition_name
