-- Live leases of a tenant: $1 tenant, $2 queue, $3 namespace, $4 task (null: any). A lease began at
-- attempt_offset.
select count(*) as active, count(distinct c.pid) as partitions,
       coalesce(sum(c.batch_end + 1 - c.attempt_offset), 0)::bigint as batches,
       coalesce(sum(c.committed + 1 - c.attempt_offset), 0)::bigint as acked
  from queen.queues q
  join queen.log_partitions p using (queue_no)
  join queen.log_consumers c using (pid)
 where q.tenant_id = $1 and ($2::text is null or q.name = $2)
   and ($3::text is null or q.namespace = $3) and ($4::text is null or q.task = $4)
   and c.lease_expires_at >= clock_timestamp()
