-- Sets cursors, made where missing: leases end, counters of attempts start anew.
-- $1 pid[], $2 group_no[], $3 committed[].
insert into queen.log_consumers (pid, group_no, committed)
select w.pid, w.group_no, w.committed
  from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (pid, group_no, committed)
 order by w.pid, w.group_no
on conflict (pid, group_no) do update
   set committed = excluded.committed, batch_end = null, lease_id = null, lease_expires_at = null,
       conflated = false, retry_count = 0, attempt_offset = -1, attempt = 0
