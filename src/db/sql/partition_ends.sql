-- Partitions of a queue with their next offset. $1 queue_no, $2 pid (null: all).
select pid, next_offset from queen.log_partitions
 where queue_no = $1 and ($2::bigint is null or pid = $2)
 order by pid
