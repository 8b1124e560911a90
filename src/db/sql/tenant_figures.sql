-- Counts of a tenant, and how far behind its partitions are: messages, and age in s of the oldest
-- pending one. $1 tenant.
select (select count(*) from queen.queues where tenant_id = $1) as queues,
       (select count(distinct namespace) from queen.queues
         where tenant_id = $1 and namespace <> '') as namespaces,
       (select count(distinct task) from queen.queues
         where tenant_id = $1 and task <> '') as tasks,
       count(*) as partitions,
       coalesce(sum(f.total), 0)::bigint as total,
       coalesce(sum(f.pending), 0)::bigint as pending,
       coalesce(sum(f.processing), 0)::bigint as processing,
       coalesce(sum(f.completed), 0)::bigint as completed,
       coalesce(sum(f.dead_letters), 0)::bigint as dead_letters,
       coalesce(sum(f.total_consumed), 0)::bigint as total_consumed,
       coalesce(avg(f.pending) filter (where f.pending > 0), 0)::float8 as lag_avg,
       coalesce(percentile_cont(0.5) within group (order by f.pending)
         filter (where f.pending > 0), 0) as lag_median,
       coalesce(min(f.pending) filter (where f.pending > 0), 0)::float8 as lag_min,
       coalesce(max(f.pending), 0)::float8 as lag_max,
       coalesce(avg(o.age_s), 0) as age_avg,
       coalesce(percentile_cont(0.5) within group (order by o.age_s), 0) as age_median,
       coalesce(min(o.age_s), 0) as age_min,
       coalesce(max(o.age_s), 0) as age_max
  from queen.queues q
  join queen.partition_figures f using (queue_no)
  left join lateral (
    select extract(epoch from clock_timestamp() - ls.created_at)::float8 as age_s
      from queen.log_segments ls
     where f.pending > 0 and ls.pid = f.pid and ls.first_offset <= f.next_offset - f.pending
     order by ls.first_offset desc limit 1) o on true
 where q.tenant_id = $1
