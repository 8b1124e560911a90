-- A whole shard for a hosted fold, with the version that fences it. One row without key if empty.
select h.version, h.watermark_ms, s.key, s.value::text as value, s.due_ms
  from (select 1) one
  left join foldmq.shards h on h.pid = $1 and h.query_no = $2
  left join foldmq.state s on s.pid = $1 and s.query_no = $2
 order by s.key
 limit $3
