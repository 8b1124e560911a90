-- Registrations of a tenant with what they have left. Indexes: those of view group_figures.
select g.name, q.name as queue, g.mode, g.start_at, g.created_at, g.conflation,
       count(*) filter (where f.has_cursor) as cursors,
       count(*) filter (where f.lag > 0) as lagging,
       coalesce(sum(f.lag), 0)::bigint as lag,
       coalesce(floor(extract(epoch from clock_timestamp() - min(f.oldest_at))), 0)::bigint
         as lag_s,
       coalesce(sum(f.total_consumed), 0)::bigint as total_consumed
  from queen.queues q
  join queen.log_groups g using (queue_no)
  left join queen.group_figures f on f.group_no = g.group_no
 where q.tenant_id = $1
 group by g.group_no, q.queue_no
 order by g.name, q.name
