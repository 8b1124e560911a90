-- Counts by namespace ($2 true) or task ($2 false), by name; without the empty label. $1 tenant.
select l.label, count(distinct q.queue_no) as queues, count(f.pid) as partitions,
       coalesce(sum(f.total), 0)::bigint as total, coalesce(sum(f.pending), 0)::bigint as pending
  from queen.queues q
  cross join lateral (select case when $2 then q.namespace else q.task end as label) l
  left join queen.partition_figures f on f.queue_no = q.queue_no
 where q.tenant_id = $1 and l.label <> ''
 group by l.label
 order by l.label
