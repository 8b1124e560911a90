-- State rows of a shard for the wire. $1 query id, $2 pid, $3 keys or null, $4 prefix or null, $5 ripeness bound or null.
select s.key, s.value::text as value, s.updated_at
  from foldmq.state s join queen_streams.queries q using (query_no)
 where q.id = $1 and q.tenant_id = $6 and s.pid = $2
   and ($3::text[] is null or s.key = any ($3))
   and ($4::text is null or starts_with(s.key, $4))
   and ($5::double precision is null or s.window_end <= $5)
 order by s.key
