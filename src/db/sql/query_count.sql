-- How many queries a tenant has.
select count(*) as n from queen_streams.queries where tenant_id = $1
