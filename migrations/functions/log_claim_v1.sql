-- Leases the next batch of each given partition for a group, until the message budget is used.
--   p_batch     messages in total          p_lanes     partitions at most
--   p_bytes     frame bytes per partition before the claim stops taking further segments
--   p_lease     id of the lease            p_lease_ms  its length; null: the queue's lease time
--   p_auto_ack  settle at delivery         p_conflate  only the newest visible message
--   p_relaxed   commit without waiting for the disk: only for a call that does nothing else
-- Rows: one per segment of a claimed partition (seg_* set), ordered; or one with outcome
-- 'empty' | 'leased' | 'held' | 'busy' | 'missing' | 'gone' (the group is deleted). retry_ms: how
-- long until it is worth asking again; for a claimed partition the length of its lease.
create or replace function queen.log_claim_v1(
  p_group_no bigint, p_pids bigint[], p_batch integer, p_lanes integer, p_bytes bigint,
  p_lease uuid, p_lease_ms bigint, p_auto_ack boolean, p_conflate boolean, p_relaxed boolean)
returns table (pid bigint, outcome text, retry_ms bigint, from_offset bigint,
  batch_end bigint, next_offset bigint, attempt integer, lease_expires_at timestamptz,
  seg_first bigint, seg_n integer, seg_at timestamptz, seg_payload bytea)
language plpgsql as $$
#variable_conflict use_column
declare
  v_left integer := p_batch;
  v_lanes integer := p_lanes;
  v_pid bigint;
  c record;
  p record;
  s record;
  v_now timestamptz;
  v_start bigint;
  v_end bigint;
  v_count bigint;
  v_bytes bigint;
  v_horizon timestamptz;
  v_first_at timestamptz;
  v_retry timestamptz;
begin
  -- A lost lease only means redelivery. The SET clause of a function would end before the commit.
  if p_relaxed and not p_auto_ack then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  foreach v_pid in array p_pids loop
    exit when v_left <= 0 or v_lanes <= 0;
    pid := v_pid; outcome := null; retry_ms := null; v_retry := null; seg_first := null; seg_n := null;
    seg_at := null; seg_payload := null; from_offset := null; batch_end := null;
    attempt := null; lease_expires_at := null; next_offset := null;
    select lp.next_offset, q.lease_time_s, q.delayed_processing_s, q.window_buffer_s into p
      from queen.log_partitions lp join queen.queues q using (queue_no)
     where lp.pid = v_pid;
    if not found then
      outcome := 'missing';
      return next;
      continue;
    end if;
    next_offset := p.next_offset;
    if p.next_offset = 0 then
      outcome := 'empty';
      return next;
      continue;
    end if;
    select lc.* into c from queen.log_consumers lc
     where lc.pid = v_pid and lc.group_no = p_group_no for update skip locked;
    if not found then
      -- A cursor must not outlive its group: one that is being deleted gets none. Skips a locked
      -- row, because cursors are held here (see db/locks.rs).
      perform 1 from queen.log_groups lg where lg.group_no = p_group_no for key share skip locked;
      if not found then
        outcome := 'gone';
        return next;
        continue;
      end if;
      insert into queen.log_consumers as lc (pid, group_no) values (v_pid, p_group_no)
        on conflict do nothing returning lc.* into c;
      if not found then
        outcome := 'busy';
        return next;
        continue;
      end if;
    end if;
    v_now := clock_timestamp();
    if c.lease_expires_at >= v_now then
      outcome := 'leased';
      retry_ms := ceil(extract(epoch from c.lease_expires_at - v_now) * 1000) + 1;
      return next;
      continue;
    end if;
    if c.committed + 1 >= p.next_offset then
      outcome := 'empty';
      return next;
      continue;
    end if;

    select max(ls.first_offset) into v_start from queen.log_segments ls
     where ls.pid = v_pid and ls.first_offset <= c.committed + 1;
    v_start := coalesce(v_start, c.committed + 1);
    v_horizon := v_now - make_interval(secs => p.delayed_processing_s);
    v_count := 0;
    v_bytes := 0;
    v_end := null;
    v_first_at := null;

    if p.window_buffer_s > 0 or p.delayed_processing_s > 0 or p_conflate then
      select ls.created_at into v_first_at from queen.log_segments ls
       where ls.pid = v_pid and ls.first_offset >= v_start
         and ls.first_offset + ls.n > c.committed + 1
       order by ls.first_offset limit 1;
      if p.window_buffer_s > 0 and p.next_offset - 1 - c.committed < 100
         and v_first_at + make_interval(secs => p.window_buffer_s) > v_now then
        v_retry := v_first_at + make_interval(secs => p.window_buffer_s);
      end if;
      if v_first_at > v_horizon then
        v_retry := greatest(v_retry, v_first_at + make_interval(secs => p.delayed_processing_s));
      end if;
      if v_retry is not null then
        outcome := 'held';
        retry_ms := ceil(extract(epoch from v_retry - v_now) * 1000) + 1;
        return next;
        continue;
      end if;
      if p_conflate then
        select ls.first_offset into v_start from queen.log_segments ls
         where ls.pid = v_pid and ls.first_offset >= v_start and ls.created_at <= v_horizon
         order by ls.first_offset desc limit 1;
      end if;
    end if;

    from_offset := c.committed + 1;
    -- What is settled at delivery is delivered once.
    attempt := case when not p_auto_ack and c.attempt_offset = from_offset
                    then c.attempt + 1 else 1 end;
    for s in
      select ls.first_offset, ls.n, ls.raw_bytes, ls.created_at, ls.payload
        from queen.log_segments ls
       where ls.pid = v_pid and ls.first_offset >= v_start
         and ls.first_offset + ls.n > c.committed + 1
       order by ls.first_offset
    loop
      exit when s.created_at > v_horizon or v_left <= 0
        or (v_count > 0 and v_bytes + s.raw_bytes > p_bytes);
      v_bytes := v_bytes + s.raw_bytes;
      if p_conflate then
        v_end := s.first_offset + s.n - 1;
        v_count := 1;
        v_left := v_left - 1;
      else
        v_end := least(s.first_offset + s.n - 1,
                       greatest(s.first_offset, from_offset) + v_left - 1);
        v_left := v_left - (v_end - greatest(s.first_offset, from_offset) + 1)::integer;
        v_count := v_count + v_end - greatest(s.first_offset, from_offset) + 1;
      end if;
      outcome := 'claimed';
      seg_first := s.first_offset;
      seg_n := s.n;
      seg_at := s.created_at;
      seg_payload := s.payload;
      batch_end := v_end;
      if not p_auto_ack then
        retry_ms := coalesce(p_lease_ms, p.lease_time_s * 1000);
        lease_expires_at := v_now + make_interval(secs => retry_ms / 1000.0);
      end if;
      return next;
      exit when p_conflate;
    end loop;

    if v_end is null then
      -- Everything above the cursor was removed by retention: nothing is left to deliver.
      update queen.log_consumers lc set committed = p.next_offset - 1, batch_end = null,
             lease_id = null, lease_expires_at = null, conflated = false
       where lc.pid = v_pid and lc.group_no = p_group_no;
      outcome := 'empty';
      seg_first := null;
      return next;
      continue;
    end if;

    v_lanes := v_lanes - 1;
    if p_auto_ack then
      update queen.log_consumers lc
         set committed = v_end, batch_end = null, lease_id = null, lease_expires_at = null,
             conflated = false, retry_count = 0, attempt_offset = -1, attempt = 0,
             total_consumed = lc.total_consumed + v_count, last_consumed_at = v_now
       where lc.pid = v_pid and lc.group_no = p_group_no;
    else
      update queen.log_consumers lc
         set batch_end = v_end, lease_id = p_lease,
             lease_expires_at = v_now + make_interval(secs => retry_ms / 1000.0),
             conflated = p_conflate, attempt_offset = c.committed + 1,
             attempt = case when c.attempt_offset = c.committed + 1 then c.attempt + 1 else 1 end
       where lc.pid = v_pid and lc.group_no = p_group_no;
    end if;
  end loop;
end
$$;
