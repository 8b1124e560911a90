-- Partitions with a message at or after an instant, latest write first. $1 tenant, $2 queue,
-- $3 partition, $4 namespace, $5 task (null: any), $6 instant, $7 most rows (null: all).
select p.pid, p.id, p.name, p.next_offset, q.name as queue, q.namespace, q.task, q.options
  from queen.queues q
  join queen.log_partitions p using (queue_no)
 where q.tenant_id = $1 and ($2::text is null or q.name = $2)
   and ($3::text is null or p.name = $3) and ($4::text is null or q.namespace = $4)
   and ($5::text is null or q.task = $5) and p.last_created_at >= $6
 order by p.last_created_at desc, p.pid
 limit $7
