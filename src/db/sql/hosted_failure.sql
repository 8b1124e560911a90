-- Records the last failure of a hosted query.
update foldmq.hosted_queries
   set last_error = $2, last_error_at = clock_timestamp(), failures = failures + 1
 where query_no = $1
