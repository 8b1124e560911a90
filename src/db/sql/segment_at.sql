-- The segment that holds an offset, and whether it is younger than a window of ms.
select s.first_offset, s.n, s.created_at, s.payload,
       s.created_at > clock_timestamp() - make_interval(secs => $3::bigint / 1000.0) as inside
  from queen.log_segments s
 where s.pid = $1 and s.first_offset <= $2 and s.first_offset + s.n > $2
 order by s.first_offset desc limit 1
