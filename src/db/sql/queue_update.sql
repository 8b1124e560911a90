-- Overwrites the options of a queue. $1 queue_no, $2 namespace, $3 task, $4..$15 columns, $16 options.
update queen.queues
   set namespace = $2, task = $3, lease_time_s = $4, retry_limit = $5, dead_letter = $6,
       delayed_processing_s = $7, window_buffer_s = $8, min_pop_wait_ms = $9, dedup_window_s = $10,
       retention_enabled = $11, retention_s = $12, completed_retention_s = $13,
       max_wait_time_s = $14, encryption_enabled = $15, options = $16
 where queue_no = $1
returning *
