-- Registrations of a group, their queues locked against the birth of partitions. $1 tenant,
-- $2 group, $3 queue (null: all).
select g.group_no, g.queue_no, g.mode, g.start_at
  from queen.queues q join queen.log_groups g using (queue_no)
 where q.tenant_id = $1 and g.name = $2 and ($3::text is null or q.name = $3)
 order by q.queue_no
   for update of q
