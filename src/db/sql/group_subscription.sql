-- Moves the stored start of a group on all queues. $1 tenant, $2 group, $3 instant. The queue mode
-- has no subscription.
update queen.log_groups g set mode = 'from', start_at = $3
  from queen.queues q
 where q.queue_no = g.queue_no and q.tenant_id = $1 and g.name = $2 and g.name <> '__QUEUE_MODE__'
returning g.group_no
