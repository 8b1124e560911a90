-- Hashes of the dedup window of partitions: $1 pid[], $2 first offset to read[], $3 window ms[].
select w.pid, s.first_offset, s.created_at, s.hashes,
       coalesce(p.next_offset, 0) as next_offset
  from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (pid, from_offset, window_ms)
  left join queen.log_partitions p on p.pid = w.pid
  left join queen.log_segments s on s.pid = w.pid and s.first_offset >= w.from_offset
    and s.created_at > clock_timestamp() - make_interval(secs => w.window_ms / 1000.0)
 order by w.pid, s.first_offset
