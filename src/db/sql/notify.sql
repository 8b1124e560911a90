-- Tells the other brokers; a hint, so it need not wait for the disk.
select set_config('synchronous_commit', 'off', true), pg_notify('foldmq', $1)
