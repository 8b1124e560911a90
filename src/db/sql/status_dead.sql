-- Dead letters of a tenant by reason, the most frequent first: $1 tenant, $2 queue, $3 namespace,
-- $4 task (null: any), $5 most reasons. Every row carries the totals; without dead letters no row.
with dead as (
  select d.pid, coalesce(d.error_message, '') as reason
    from queen.queues q join queen.log_dead_letters d using (queue_no)
   where q.tenant_id = $1 and ($2::text is null or q.name = $2)
     and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4))
select reason, count(*) as n, (select count(*) from dead) as total,
       (select count(distinct pid) from dead) as partitions
  from dead
 group by reason
 order by n desc, reason
 limit $5
