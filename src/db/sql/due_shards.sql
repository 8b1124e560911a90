-- Takes shards whose wake time has come and puts their next look one second on, so that one
-- broker works on each; a broker that dies there is followed by another. $1 most rows.
-- A partition that waits for silence is re-armed. Index: shards_wake.
with due as (
  select s.pid, s.query_no, h.timers, h.idle_ms
    from foldmq.shards s join foldmq.hosted_queries h using (query_no)
   where s.wake_at <= clock_timestamp() and h.state = 'running'
   order by s.wake_at limit $1
     for update of s skip locked)
update foldmq.shards s
   set wake_at = case when due.timers = 'watermark'
                       and (s.watermark_ms is null or s.next_due_ms > s.watermark_ms)
                       and s.last_cycle_at + make_interval(secs => due.idle_ms / 1000.0)
                           > clock_timestamp()
                      then s.last_cycle_at + make_interval(secs => due.idle_ms / 1000.0)
                      else clock_timestamp() + interval '1 second' end
  from due
 where s.pid = due.pid and s.query_no = due.query_no
returning s.pid, s.partition_id, s.query_no, s.watermark_ms, s.next_due_ms,
  (due.timers = 'watermark' and (s.watermark_ms is null or s.next_due_ms > s.watermark_ms)
   and s.last_cycle_at + make_interval(secs => due.idle_ms / 1000.0) > clock_timestamp()) as waits,
  (extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms
