-- $1 source queue, $2 sink queue, $3 the query's group
select coalesce(jsonb_agg(jsonb_build_object(
    'queue', p.queue, 'partition', p.name, 'id', p.id, 'next_offset', p.next_offset,
    'cursors', (
      select coalesce(jsonb_agg(jsonb_build_object(
          'group', (g.name <> $3)::int, 'committed', c.committed, 'batch_end', c.batch_end,
          'lease', c.lease_id, 'live', coalesce(c.lease_expires_at >= clock_timestamp(), false),
          'retries', c.retry_count, 'consumed', c.total_consumed,
          'ends', (extract(epoch from c.lease_expires_at) * 1000000)::bigint)
        order by g.name <> $3), '[]')
      from queen.log_consumers c join queen.log_groups g using (group_no) where c.pid = p.pid),
    'rows', (
      select coalesce(jsonb_object_agg(s.key, s.value::jsonb), '{}')
      from foldmq.state s where s.pid = p.pid),
    'dead', (
      select coalesce(jsonb_agg(jsonb_build_array(
          d.first_offset, (d.group_name <> $3)::int, d.retry_count)
        order by d.first_offset, d.group_name <> $3), '[]')
      from queen.log_dead_letters d where d.pid = p.pid)
  ) order by p.queue, p.name collate "C"), '[]')
from (
  select lp.pid, lp.name, lp.id, lp.next_offset, (q.name = $2)::int as queue
  from queen.queues q join queen.log_partitions lp using (queue_no)
  where q.tenant_id = '00000000-0000-0000-0000-000000000001' and q.name in ($1, $2)) p
