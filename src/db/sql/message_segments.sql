-- The newest segments of stretches of partitions: $1 pid[], $2 first offset[], $3 end[] (exclusive),
-- $4 most rows, also of each partition. Index: log_segments pkey.
select w.pid, s.first_offset, s.n, s.created_at
  from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (pid, from_offset, to_offset)
  cross join lateral (
    select ls.first_offset, ls.n, ls.created_at from queen.log_segments ls
     where ls.pid = w.pid and ls.first_offset >= w.from_offset and ls.first_offset < w.to_offset
     order by ls.first_offset desc limit $4) s
 order by s.created_at desc, w.pid, s.first_offset desc
 limit $4
