-- Traces of a message, oldest first. $1 pid, $2 transaction id. Index: message_traces_message.
select t.id, t.event_type, t.data::text as data, t.consumer_group, t.worker_id, t.created_at,
       t.transaction_id,
       array(select n.name from queen.message_trace_names n
              where n.pid = t.pid and n.trace_id = t.id order by n.name) as names
  from queen.message_traces t
 where t.pid = $1 and md5(t.transaction_id) = md5($2) and t.transaction_id = $2
 order by t.created_at, t.id
