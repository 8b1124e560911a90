-- How long until the next shard must be looked at, ms; null: none.
select (extract(epoch from min(wake_at) - clock_timestamp()) * 1000)::bigint as wait_ms
  from foldmq.shards where wake_at is not null
