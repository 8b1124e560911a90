-- The newest dead letter of a message address. $1 tenant, $2 pid, $3 transaction id.
-- Index: log_dead_letters_address.
select d.*, q.name as queue, p.name as partition, p.id as partition_id
  from queen.log_dead_letters d
  join queen.queues q on q.queue_no = d.queue_no
  join queen.log_partitions p on p.pid = d.pid
 where q.tenant_id = $1 and d.pid = $2 and md5(d.transaction_id) = md5($3)
   and d.transaction_id = $3
 order by d.failed_at desc, d.id desc limit 1
