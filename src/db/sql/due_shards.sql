-- Takes shards whose wake time has come and puts their next look one second on, so that one
-- broker works on each; a broker that dies there is followed by another. $1 most rows.
-- A shard on event time that its watermark does not make due waits for silence: it is re-armed,
-- or left alone where no silence closes it. A partition with messages that wait is not silent,
-- however long nobody folded them. Index: shards_wake.
with due as (
  select s.pid, s.query_no,
         case when h.timers = 'clock' or s.next_due_ms <= s.watermark_ms then null
              when h.idle_ms = 0 then 'infinity'::timestamptz
              when exists (
                select from queen.log_partitions p
                  join queen.log_groups g on g.queue_no = p.queue_no and g.name = 'streams.' || q.name
                  left join queen.log_consumers c on c.pid = p.pid and c.group_no = g.group_no
                 where p.pid = s.pid and p.next_offset > coalesce(c.committed, -1) + 1)
              then clock_timestamp() + make_interval(secs => least(h.idle_ms, 1000) / 1000.0)
              else s.last_cycle_at + make_interval(secs => h.idle_ms / 1000.0) end as silent_at
    from foldmq.shards s
    join foldmq.hosted_queries h using (query_no)
    join queen_streams.queries q using (query_no)
   where s.wake_at <= clock_timestamp() and h.state = 'running'
   order by s.wake_at limit $1
     for update of s skip locked)
update foldmq.shards s
   set wake_at = case when due.silent_at = 'infinity' then null
                      when due.silent_at > clock_timestamp() then due.silent_at
                      else clock_timestamp() + interval '1 second' end
  from due
 where s.pid = due.pid and s.query_no = due.query_no
returning s.pid, s.partition_id, s.query_no, s.watermark_ms, s.next_due_ms,
  coalesce(due.silent_at > clock_timestamp(), false) as waits,
  (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms
