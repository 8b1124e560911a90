-- The one allocator: every append to a partition goes through it.
-- Locks the partition row, gives the next offsets, stores one segment.
--   p_known   offset below which the caller knows the hashes of the dedup window; null: no check
--   p_window_ms  length of the dedup window
-- status: queued | missing (no such partition) | stale (a hash may be a duplicate: check again)
create or replace function queen.log_push_one_v1(
  p_pid bigint, p_n integer, p_raw integer, p_first_id uuid, p_last_id uuid,
  p_hashes bytea, p_payload bytea, p_known bigint, p_window_ms bigint,
  out status text, out base_offset bigint, out at timestamptz)
language plpgsql as $$
declare
  v_last timestamptz;
  v_last_id uuid;
begin
  select next_offset, last_created_at, last_message_id into base_offset, v_last, v_last_id
    from queen.log_partitions where pid = p_pid for update;
  if not found then
    status := 'missing';
    return;
  end if;
  at := greatest(clock_timestamp(), v_last);
  if p_known is not null and p_known < base_offset then
    if exists (
      select 1
        from queen.log_segments s
        cross join lateral generate_series(0, s.n - 1) i
        join (select substr(p_hashes, j * 16 + 1, 16) as hash from generate_series(0, p_n - 1) j) w
          on w.hash = substr(s.hashes, i * 16 + 1, 16)
       where s.pid = p_pid and s.first_offset >= p_known
         and s.created_at > at - make_interval(secs => p_window_ms / 1000.0)
    ) then
      status := 'stale';
      return;
    end if;
  end if;
  -- Clients sort equal milliseconds by id: an id that would sort too low takes the next one.
  if v_last_id >= p_first_id and date_trunc('milliseconds', at) = date_trunc('milliseconds', v_last) then
    at := date_trunc('milliseconds', at) + interval '1 millisecond';
  end if;
  insert into queen.log_segments (pid, first_offset, n, raw_bytes, created_at, hashes, payload)
    values (p_pid, base_offset, p_n, p_raw, at, p_hashes, p_payload);
  update queen.log_partitions
     set next_offset = base_offset + p_n, last_created_at = at, last_message_id = p_last_id
   where pid = p_pid;
  status := 'queued';
end
$$;
