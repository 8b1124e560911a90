-- Deletes a registration; shards and the hosted row follow by cascade.
delete from queen_streams.queries where query_no = $1
