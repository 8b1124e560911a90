-- Deletes every state row of a query. The caller holds its shards.
delete from foldmq.state where query_no = $1
