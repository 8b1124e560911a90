-- Live leases of (partition, group) pairs: $1 pid[], $2 group name[]. Index: log_consumers pkey.
select w.pid, w.name, c.lease_id
  from unnest($1::bigint[], $2::text[]) w (pid, name)
  join queen.log_partitions p on p.pid = w.pid
  join queen.log_groups g on g.queue_no = p.queue_no and g.name = w.name
  join queen.log_consumers c on c.pid = w.pid and c.group_no = g.group_no
 where c.lease_expires_at >= clock_timestamp()
