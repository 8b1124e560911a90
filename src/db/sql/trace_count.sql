-- How many traces stand under a name ($2), or how many names there are ($2 null). $1 tenant.
select case when $2::text is null then count(distinct n.name) else count(*) end as n
  from queen.message_trace_names n join queen.log_partitions p using (pid)
 where n.tenant_id = $1 and ($2::text is null or n.name = $2)
