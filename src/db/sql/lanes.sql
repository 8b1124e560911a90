-- Partitions of a queue on which a group has something above its cursor, leased ones included.
-- $1 queue_no, $2 group_no, $3 most rows. Index: log_partitions_queue, log_consumers pkey.
select p.pid,
       ceil(extract(epoch from c.lease_expires_at - clock_timestamp()) * 1000)::bigint as wait_ms
  from queen.log_partitions p
  left join queen.log_consumers c on c.pid = p.pid and c.group_no = $2
 where p.queue_no = $1 and p.next_offset > 0
   and p.next_offset > coalesce(c.committed, -1) + 1
 order by c.lease_expires_at nulls first
 limit $3
