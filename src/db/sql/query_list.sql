-- Queries of a tenant.
select * from queen_streams.queries where tenant_id = $1 and ($2::text is null or name = $2) order by name
