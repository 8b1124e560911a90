-- Stores a module; no row where it was there.
insert into foldmq.modules (tenant_id, hash, name, version, manifest, size_bytes, bytes)
  values ($1, $2, $3, $4, $5, $6, $7)
  on conflict (tenant_id, hash) do nothing
returning created_at
