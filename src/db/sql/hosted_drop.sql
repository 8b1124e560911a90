-- Ends the hosting of a query.
delete from foldmq.hosted_queries where query_no = $1
