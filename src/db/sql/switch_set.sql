-- Sets a maintenance switch. $1 name, $2 enabled.
insert into foldmq.switches (name, enabled) values ($1, $2)
  on conflict (name) do update set enabled = excluded.enabled, updated_at = clock_timestamp()
