-- Cursors of a group by queue and partition. $1 tenant, $2 group.
select q.name as queue, g.conflation, f.partition_name, f.lag, f.leased, f.total_consumed,
       f.last_consumed_at,
       coalesce(floor(extract(epoch from clock_timestamp() - f.oldest_at)), 0)::bigint as lag_s
  from queen.queues q
  join queen.log_groups g using (queue_no)
  join queen.group_figures f on f.group_no = g.group_no and f.has_cursor
 where q.tenant_id = $1 and g.name = $2
 order by q.name, f.partition_name
