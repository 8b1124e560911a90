-- Fences what brokers cached of a query whose state was deleted.
update foldmq.shards
   set version = version + 1, watermark_ms = null, next_due_ms = null, wake_at = null
 where query_no = $1
