-- Locks a queue row against the birth of partitions.
select queue_no from queen.queues where queue_no = $1 for update
