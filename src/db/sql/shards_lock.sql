-- Locks the shards of a query in lock order.
select pid from foldmq.shards where query_no = $1 order by pid for update
