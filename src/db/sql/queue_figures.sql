-- Queues of a tenant with their counts, newest first. $1 tenant, $2 queue, $3 namespace, $4 task
-- (null: any), $5 limit (null: all), $6 offset.
with picked as (
  select * from queen.queues
   where tenant_id = $1 and ($2::text is null or name = $2)
     and ($3::text is null or namespace = $3) and ($4::text is null or task = $4)
   order by created_at desc, queue_no desc
   limit $5 offset $6)
select q.queue_no, q.id, q.name, q.namespace, q.task, q.created_at,
       count(f.pid) as partitions,
       coalesce(sum(f.total), 0)::bigint as total,
       coalesce(sum(f.pending), 0)::bigint as pending,
       coalesce(sum(f.processing), 0)::bigint as processing,
       coalesce(sum(f.completed), 0)::bigint as completed,
       coalesce(sum(f.dead_letters), 0)::bigint as dead_letters,
       coalesce(sum(f.total_consumed), 0)::bigint as total_consumed
  from picked q
  left join queen.partition_figures f on f.queue_no = q.queue_no
 group by q.queue_no, q.id, q.name, q.namespace, q.task, q.created_at
 order by q.created_at desc, q.queue_no desc
