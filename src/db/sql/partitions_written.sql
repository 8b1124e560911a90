-- Partitions with a message at or after an instant. $1 tenant, $2 queue, $3 namespace, $4 task
-- (null: any), $5 instant.
select p.pid, p.next_offset
  from queen.queues q join queen.log_partitions p using (queue_no)
 where q.tenant_id = $1 and ($2::text is null or q.name = $2)
   and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
   and p.last_created_at >= $5
