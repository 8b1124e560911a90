-- Moves a hosted query to a state with a reason; gives a row if it changed.
update foldmq.hosted_queries
   set state = $2, state_reason = $3, updated_at = clock_timestamp()
 where query_no = $1 and (state <> $2 or state_reason is distinct from $3)
returning query_no
