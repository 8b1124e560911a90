-- Overwrites queues and hash of a registration.
update queen_streams.queries
   set source_queue = $2, sink_queue = $3, config_hash = $4, updated_at = clock_timestamp()
 where query_no = $1
returning *
