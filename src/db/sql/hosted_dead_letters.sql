-- Counts messages that a hosted query gave up.
update foldmq.hosted_queries set dead_letters = dead_letters + $2 where query_no = $1
