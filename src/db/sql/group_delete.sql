-- Deletes a group of a queue with its cursors.
with gone as (
  delete from queen.log_groups g using queen.queues q
   where g.queue_no = q.queue_no and q.tenant_id = $1 and q.name = $2 and g.name = $3
  returning g.group_no)
delete from queen.log_consumers c using gone where c.group_no = gone.group_no
