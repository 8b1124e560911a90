-- Settles messages addressed by transaction hash, for several (partition, group, lease) at once.
-- The caller sorts groups by (pid, group name): that is the lock order of cursor rows.
--   g_*  one entry a group of acks: partition, its wire id, group name, lease (null: none given)
--   g_dead_*  for a group whose signal message is to be dead-lettered: its snapshot. A call without
--             it reports need_dead = the offset and changes nothing; the caller reads the message
--             and calls again.
--   i_*  one entry an ack: its group (1-based), hash, status 1 completed 2 failed 3 retry 4 dlq
-- Rows: item rows (item set), then one row a group (item null).
create or replace function queen.log_settle_v1(
  g_pid bigint[], g_partition_id uuid[], g_name text[], g_lease uuid[],
  g_dead_offset bigint[], g_dead_id uuid[], g_dead_message_id uuid[], g_dead_txn text[],
  g_dead_payload bytea[], g_dead_sub text[], g_dead_trace uuid[], g_dead_error text[],
  g_dead_at timestamptz[],
  i_group integer[], i_hash bytea[], i_status smallint[])
returns table (grp integer, item integer, success boolean, error text, noop boolean,
  dead boolean, released boolean, need_dead bigint, queue_no bigint, done bigint, retired bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  g integer;
  k integer;
  c record;
  p record;
  v_items integer[];
  v_hash bytea[];
  v_off bigint[];
  v_late bigint[];
  v_hi bigint;
  v_start bigint;
  v_signal bigint;
  v_kind smallint;
  v_new bigint;
  v_refused text;
  v_dead boolean;
  v_released boolean;
  v_drop boolean;
  v_idle boolean;
begin
  for g in 1 .. cardinality(g_pid) loop
    grp := g;
    queue_no := null; need_dead := null; done := 0; retired := null;
    v_refused := null; v_dead := false; v_released := false; v_drop := false;
    v_off := null; v_late := null; v_signal := null; v_kind := null;
    select array_agg(o order by o), array_agg(i_hash[o] order by o) into v_items, v_hash
      from generate_subscripts(i_group, 1) o where i_group[o] = g;

    select lp.next_offset, lp.queue_no, q.retry_limit, q.dead_letter, lg.group_no into p
      from queen.log_partitions lp
      join queen.queues q on q.queue_no = lp.queue_no
      left join queen.log_groups lg on lg.queue_no = lp.queue_no and lg.name = g_name[g]
     where lp.pid = g_pid[g] and lp.id = g_partition_id[g];
    if not found or p.group_no is null then
      v_refused := 'consumer not found';
    else
      queue_no := p.queue_no;
      select lc.* into c from queen.log_consumers lc
       where lc.pid = g_pid[g] and lc.group_no = p.group_no for update;
      if not found then
        v_refused := 'consumer not found';
      elsif g_lease[g] is not null and (c.lease_id is distinct from g_lease[g]
            or c.lease_expires_at < clock_timestamp()) then
        v_refused := 'invalid or expired lease';
      end if;
    end if;

    if v_refused is not null then
      foreach k in array v_items loop
        item := k; success := false; error := v_refused; noop := false; dead := false;
        return next;
      end loop;
      item := null; released := false;
      return next;
      continue;
    end if;

    v_hi := coalesce(c.batch_end, p.next_offset - 1);
    select coalesce(max(ls.first_offset), c.committed + 1) into v_start
      from queen.log_segments ls
     where ls.pid = g_pid[g] and ls.first_offset <= c.committed + 1;
    select array_agg(x.off order by w.ord) into v_off
      from unnest(v_hash) with ordinality w (hash, ord)
      left join (
        -- A conflating lease delivered the last occurrence only.
        select f.hash, case when c.conflated then max(f.off) else min(f.off) end as off
          from (select substr(ls.hashes, i * 16 + 1, 16) as hash, ls.first_offset + i as off
                  from queen.log_segments ls cross join lateral generate_series(0, ls.n - 1) i
                 where ls.pid = g_pid[g] and ls.first_offset between v_start and v_hi) f
         where f.off > c.committed and f.off <= v_hi
         group by f.hash) x on x.hash = w.hash;
    if array_position(v_off, null) is not null then
      select array_agg(x.off order by w.ord) into v_late
        from unnest(v_hash) with ordinality w (hash, ord)
        left join (
          select f.hash, max(f.off) as off
            from (select substr(ls.hashes, i * 16 + 1, 16) as hash, ls.first_offset + i as off
                    from queen.log_segments ls cross join lateral generate_series(0, ls.n - 1) i
                   where ls.pid = g_pid[g] and ls.first_offset <= c.committed) f
           where f.off <= c.committed
           group by f.hash) x on x.hash = w.hash;
    end if;

    -- The lowest failed, dlq or retry decides; on a tie dlq, then failed, then retry.
    for k in 1 .. cardinality(v_items) loop
      if v_off[k] is not null and i_status[v_items[k]] <> 1 then
        if v_signal is null or v_off[k] < v_signal
           or (v_off[k] = v_signal and (i_status[v_items[k]] = 4
               or (i_status[v_items[k]] = 2 and v_kind = 3))) then
          v_signal := v_off[k];
          v_kind := i_status[v_items[k]];
        end if;
      end if;
    end loop;
    v_new := c.committed;
    for k in 1 .. cardinality(v_items) loop
      if v_off[k] is not null and i_status[v_items[k]] = 1
         and (v_signal is null or v_off[k] < v_signal) then
        v_new := greatest(v_new, v_off[k]);
      end if;
    end loop;

    if v_kind = 4 or (v_kind = 2 and c.batch_end is not null and c.retry_count >= p.retry_limit) then
      if v_kind = 4 or p.dead_letter then
        v_dead := true;
        if g_dead_offset[g] is distinct from v_signal then
          need_dead := v_signal;
          item := null; released := false;
          return next;
          continue;
        end if;
        insert into queen.log_dead_letters (pid, id, queue_no, group_name, first_offset, message_id,
            transaction_id, payload, producer_sub, trace_id, retry_count, error_message, created_at)
          values (g_pid[g], g_dead_id[g], p.queue_no, g_name[g], v_signal, g_dead_message_id[g],
            g_dead_txn[g], g_dead_payload[g], g_dead_sub[g], g_dead_trace[g], c.retry_count,
            g_dead_error[g], g_dead_at[g]);
      else
        v_drop := true;
      end if;
    end if;

    -- Without an outstanding batch there is nothing to give back; a dead letter needs none.
    v_idle := v_signal is not null and c.batch_end is null and v_kind <> 4;
    if v_signal is null or v_idle then
      if v_new > c.committed then
        v_released := c.batch_end is null or v_new >= c.batch_end;
        if c.conflated and v_released then
          retired := v_new - c.committed - 1;
        end if;
        update queen.log_consumers lc
           set committed = v_new,
               batch_end = case when v_released then null else lc.batch_end end,
               lease_id = case when v_released then null else lc.lease_id end,
               lease_expires_at = case when v_released then null else lc.lease_expires_at end,
               conflated = case when v_released then false else lc.conflated end,
               retry_count = case when v_released then 0 else lc.retry_count end,
               total_consumed = lc.total_consumed + (v_new - c.committed),
               last_consumed_at = clock_timestamp()
         where lc.pid = g_pid[g] and lc.group_no = p.group_no;
      end if;
    else
      v_released := true;
      if v_dead or v_drop then
        v_new := v_signal;
      end if;
      update queen.log_consumers lc
         set committed = v_new, batch_end = null, lease_id = null, lease_expires_at = null,
             conflated = false,
             retry_count = case when v_dead or v_drop then 0
                                when v_kind = 2 then lc.retry_count + 1
                                else lc.retry_count end,
             total_consumed = lc.total_consumed + (v_new - c.committed),
             last_consumed_at = clock_timestamp()
       where lc.pid = g_pid[g] and lc.group_no = p.group_no;
    end if;

    for k in 1 .. cardinality(v_items) loop
      item := v_items[k]; error := null; noop := false; dead := false; success := true;
      if v_off[k] is not null then
        dead := v_dead and v_off[k] = v_signal and i_status[item] <> 1;
        if v_idle and i_status[item] <> 1 then
          success := false;
          error := 'no outstanding batch';
        end if;
      elsif v_late[k] is null then
        success := false;
        error := 'unresolvable transactionId';
      elsif i_status[item] = 1 then
        noop := true;
      else
        success := false;
        error := 'already committed';
      end if;
      return next;
    end loop;
    item := null; released := v_released; done := v_new - c.committed;
    return next;
  end loop;
end
$$;
