-- Partitions of a query that hold rows with a due time.
select partition_id from foldmq.shards where query_no = $1 and next_due_ms is not null
