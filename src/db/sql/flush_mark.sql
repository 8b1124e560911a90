-- Makes every shard of a query due at once, for a flush that an operator asked for.
update foldmq.shards set wake_at = clock_timestamp()
 where query_no = $1 and next_due_ms is not null
returning pid, partition_id
