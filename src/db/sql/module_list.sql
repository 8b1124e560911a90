-- Modules of a tenant without their bytes, newest first. $2: one hash or null.
select m.hash, m.name, m.version, m.manifest, m.size_bytes, m.created_at,
       array(select q.name from foldmq.hosted_queries h join queen_streams.queries q using (query_no)
              where h.module_hash = m.hash and q.tenant_id = m.tenant_id order by q.name) as queries
  from foldmq.modules m
 where m.tenant_id = $1 and ($2::bytea is null or m.hash = $2)
 order by m.created_at desc, m.hash
