-- Records a trace with its names. $1 pid, $2 id, $3 transaction id, $4 group, $5 event type, $6 data,
-- $7 worker, $8 tenant, $9 names[].
with made as (
  insert into queen.message_traces (pid, id, transaction_id, consumer_group, event_type, data,
      worker_id)
    values ($1, $2, $3, $4, $5, $6::text::json, $7)
    returning pid, id)
insert into queen.message_trace_names (pid, trace_id, name, tenant_id)
select made.pid, made.id, n.name, $8 from made, unnest($9::text[]) n (name)
