-- Stored segments by (pid, first offset), one row a pair that is retained.
select s.pid, s.first_offset, s.n, s.payload
  from unnest($1::bigint[], $2::bigint[]) w (pid, first_offset)
  join queen.log_segments s on s.pid = w.pid and s.first_offset = w.first_offset
