-- Deletes a module that no query runs.
delete from foldmq.modules m
 where m.tenant_id = $1 and m.hash = $2
   and not exists (select from foldmq.hosted_queries h join queen_streams.queries q using (query_no)
                    where h.module_hash = m.hash and q.tenant_id = m.tenant_id)
returning hash
