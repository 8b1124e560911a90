-- A query by its wire id.
select * from queen_streams.queries where id = $1 and tenant_id = $2
