-- Names of traces, latest first. $1 tenant, $2 limit, $3 offset. Index: message_trace_names_name.
select n.name, count(*) as traces, count(distinct (t.pid, md5(t.transaction_id))) as messages,
       max(t.created_at) as last_seen
  from queen.message_trace_names n
  join queen.message_traces t on t.pid = n.pid and t.id = n.trace_id
  join queen.log_partitions p on p.pid = t.pid
 where n.tenant_id = $1
 group by n.name
 order by last_seen desc, n.name
 limit $2 offset $3
