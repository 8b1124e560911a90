-- Takes a dead letter out; no row where somebody else was first. $1 tenant, $2 id.
-- Index: log_dead_letters_id.
delete from queen.log_dead_letters d using queen.queues q
 where d.id = $2 and q.queue_no = d.queue_no and q.tenant_id = $1
returning d.id
