-- Traces under a name, oldest first, of partitions that exist. $1 tenant, $2 name, $3 limit,
-- $4 offset. Index: message_trace_names_name.
select t.id, t.event_type, t.data::text as data, t.consumer_group, t.worker_id, t.created_at,
       t.transaction_id, p.id as partition_id, p.name as partition, q.name as queue,
       array(select o.name from queen.message_trace_names o
              where o.pid = t.pid and o.trace_id = t.id order by o.name) as names
  from queen.message_trace_names n
  join queen.message_traces t on t.pid = n.pid and t.id = n.trace_id
  join queen.log_partitions p on p.pid = t.pid
  join queen.queues q on q.queue_no = p.queue_no
 where n.tenant_id = $1 and n.name = $2
 order by t.created_at, t.id
 limit $3 offset $4
