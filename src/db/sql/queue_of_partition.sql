-- A partition with its queue, if the wire id is right. Index: log_partitions pkey.
select p.pid, p.id as partition_id, p.name as partition, q.*
  from queen.log_partitions p join queen.queues q using (queue_no)
 where p.pid = $1 and p.id = $2
