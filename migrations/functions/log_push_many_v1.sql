-- Appends to several partitions in one transaction, each with its own outcome.
-- The caller sorts by pid: that is the lock order of partition rows. A pid may come several times
-- in a row: its segments are stored together or not at all.
create or replace function queen.log_push_many_v1(
  p_pid bigint[], p_n integer[], p_raw integer[], p_first_id uuid[], p_last_id uuid[],
  p_hashes bytea[], p_payload bytea[], p_known bigint[], p_window_ms bigint[])
returns table (ix integer, status text, base_offset bigint, at timestamptz)
language plpgsql as $$
begin
  for ix in 1 .. cardinality(p_pid) loop
    if ix > 1 and p_pid[ix] = p_pid[ix - 1] and status <> 'queued' then
      return next;
      continue;
    end if;
    select o.status, o.base_offset, o.at into status, base_offset, at
      from queen.log_push_one_v1(p_pid[ix], p_n[ix], p_raw[ix], p_first_id[ix], p_last_id[ix],
        p_hashes[ix], p_payload[ix], p_known[ix], p_window_ms[ix]) o;
    return next;
  end loop;
end
$$;
