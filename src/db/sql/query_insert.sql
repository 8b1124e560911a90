-- Registers a new query; no row where somebody else was first.
insert into queen_streams.queries (id, tenant_id, name, source_queue, sink_queue, config_hash)
  values ($1, $2, $3, $4, $5, $6)
  on conflict (tenant_id, name) do nothing
returning *
