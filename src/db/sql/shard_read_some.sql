-- Rows of a shard by keys, prefixes and due time, with the version that fences them.
select h.version, h.watermark_ms, s.key, s.value::text as value, s.due_ms
  from (select 1) one
  left join foldmq.shards h on h.pid = $1 and h.query_no = $2
  left join foldmq.state s on s.pid = $1 and s.query_no = $2
   and (s.key = any ($3) or s.due_ms <= $5
        or exists (select from unnest($4::text[]) p where starts_with(s.key, p)))
 order by s.key
 limit $6
