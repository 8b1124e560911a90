-- Counters, open state and lag of a query. $1 query_no, $2 tenant, $3 source queue, $4 group.
select
  (select coalesce(sum(cycles), 0)::bigint from foldmq.shards where query_no = $1) as cycles,
  (select coalesce(sum(messages), 0)::bigint from foldmq.shards where query_no = $1) as messages,
  (select coalesce(sum(emits), 0)::bigint from foldmq.shards where query_no = $1) as emits,
  (select coalesce(jsonb_object_agg(key, total), '{}') from (
     select t.key, sum(t.value::bigint) as total
       from foldmq.shards h cross join lateral jsonb_each_text(h.tallies) t
      where h.query_no = $1 group by t.key) x) as tallies,
  (select count(*) from foldmq.state where query_no = $1) as state_rows,
  (select coalesce(sum(octet_length(value::text) + octet_length(key)), 0)::bigint
     from foldmq.state where query_no = $1) as state_bytes,
  (select count(*) from foldmq.shards where query_no = $1) as partitions,
  (select min(watermark_ms) from foldmq.shards where query_no = $1) as watermark_ms,
  (select coalesce(sum(greatest(0, p.next_offset
            - greatest(coalesce(c.committed, -1) + 1, coalesce(l.first, p.next_offset)))), 0)::bigint
     from queen.queues q
     join queen.log_partitions p on p.queue_no = q.queue_no
     left join queen.log_groups g on g.queue_no = q.queue_no and g.name = $4
     left join queen.log_consumers c on c.pid = p.pid and c.group_no = g.group_no
     left join lateral (select min(s.first_offset) as first from queen.log_segments s
                         where s.pid = p.pid) l on true
    where q.tenant_id = $2 and q.name = $3) as lag_messages
