-- The grant of a tenant, locked: registrations of one tenant are counted one after another.
select enabled, max_queries from queen_streams.quota where tenant_id = $1 for update
