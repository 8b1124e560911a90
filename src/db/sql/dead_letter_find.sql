-- A dead letter of a tenant by its id. Index: log_dead_letters_id.
select d.*, q.name as queue, p.name as partition, p.id as partition_id
  from queen.log_dead_letters d
  join queen.queues q on q.queue_no = d.queue_no
  left join queen.log_partitions p on p.pid = d.pid
 where q.tenant_id = $1 and d.id = $2
