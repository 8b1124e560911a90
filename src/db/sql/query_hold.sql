-- Locks the row of a query against cycles that would make a shard of it. Comes before its shards.
select 1 from queen_streams.queries where query_no = $1 for update
