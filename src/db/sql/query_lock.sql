-- A query by tenant and name, locked against other registrations but not against cycles.
-- Index: queries (tenant_id, name).
select * from queen_streams.queries where tenant_id = $1 and name = $2 for no key update
