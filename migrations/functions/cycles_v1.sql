-- Commits cycles: state ops, sink appends, dead letters, settlement, and the claim of the next
-- batch. All cycles of one call commit together; a refusal raises and undoes the whole call.
-- Lock order: queue rows of partitions with several appends, query rows where a shard is to be made,
-- shard rows, partition rows, cursor rows, each ascending (see db/locks.rs).
-- The caller sorts cycles by (pid, query_no), names each pair once, and sends no key twice.
--
--   c_version    expected version of the shard row; null: any
--   c_ack        0 none, 1 completed, 2 completed in part, 3 failed, 4 in part and released
--   c_skip_hash  in a partial ack: the hash of the last settled message, to recognise a repeat
--   c_*_n        how many entries of the flat arrays belong to the cycle
--   c_timers     0 outside worker, 1 due times on the clock, 2 on the watermark
--   c_backoff_ms least delay before the shard is looked at again
--   c_next_lease claim the next batch of the partition under this lease; null: no claim
-- Refusals: FQ001 partition not found, FQ002 query not found, FQ003 lease lost, FQ004 dedup stale,
--   FQ005 shard version, FQ006 already applied, FQ007 lease without batch, FQ008 sink missing
-- Rows: kind 'push' (ix, item, base_offset, at), 'cycle' (ix, count, released, version, due, wake),
--   'claim' (ix and the columns of log_claim_v1).
create or replace function foldmq.cycles_v1(
  c_pid bigint[], c_partition_id uuid[], c_query_no bigint[], c_version bigint[],
  c_group text[], c_ack smallint[], c_lease uuid[], c_count bigint[], c_skip_hash bytea[],
  c_upserts_n integer[], c_deletes_n integer[], c_pushes_n integer[], c_deads_n integer[],
  c_timers smallint[], c_idle_ms bigint[], c_watermark bigint[], c_backoff_ms bigint[],
  c_messages bigint[], c_tallies text[],
  c_next_lease uuid[], c_next_batch integer[], c_next_bytes bigint[], c_next_lease_ms bigint[],
  s_key text[], s_value text[], s_window_end double precision[], s_due bigint[],
  x_key text[],
  u_pid bigint[], u_n integer[], u_raw integer[], u_first_id uuid[], u_last_id uuid[],
  u_hashes bytea[], u_payload bytea[], u_known bigint[], u_window_ms bigint[],
  d_id uuid[], d_offset bigint[], d_message_id uuid[], d_txn text[], d_payload bytea[],
  d_sub text[], d_trace uuid[], d_error text[], d_detail text[], d_at timestamptz[],
  d_retries integer[])
returns table (ix integer, kind text, item integer, base_offset bigint, at timestamptz,
  count bigint, released boolean, version bigint, due bigint, wake_at timestamptz,
  outcome text, retry_ms bigint, from_offset bigint, batch_end bigint, next_offset bigint,
  attempt integer, lease_expires_at timestamptz, seg_first bigint, seg_n integer,
  seg_at timestamptz, seg_payload bytea, queue_no bigint)
language plpgsql as $$
#variable_conflict use_column
declare
  i integer;
  j integer;
  v_s integer := 0;
  v_x integer := 0;
  v_u integer := 0;
  v_d integer := 0;
  v_version bigint[];
  v_one bigint;
  v_now timestamptz;
  v_status text;
  v_group bigint;
  v_queue bigint;
  c record;
  s record;
  v_new bigint;
  v_left bigint;
  v_start bigint;
  v_from bigint;
  v_to bigint;
  v_due bigint;
  v_wake timestamptz;
  v_emits bigint;
begin
  -- A row that is updated twice in one transaction has its references checked again: a partition
  -- with several appends locks its queue's row, which stands first in the lock order.
  if cardinality(u_pid) > 1 and (select count(distinct p) from unnest(u_pid) p) < cardinality(u_pid) then
    perform 1 from queen.queues q
     where q.queue_no in (
       select lp.queue_no from queen.log_partitions lp
        where lp.pid in (select p from unnest(u_pid) p group by p having count(*) > 1))
     order by q.queue_no for key share;
  end if;
  -- A shard that is to be made refers to its query's row, which stands before all shards in the
  -- lock order: a reset or deletion of the query is waited for while no shard is held.
  if cardinality(c_pid) > 1 then
    perform 1 from queen_streams.queries q
     where q.query_no in (
       select a.query_no from unnest(c_pid, c_query_no) a (pid, query_no)
        where not exists (select 1 from foldmq.shards h
                           where h.pid = a.pid and h.query_no = a.query_no))
     order by q.query_no for key share;
  end if;

  for i in 1 .. cardinality(c_pid) loop
    select h.version into v_one from foldmq.shards h
     where h.pid = c_pid[i] and h.query_no = c_query_no[i] for update;
    if not found then
      perform 1 from queen.log_partitions lp where lp.pid = c_pid[i] and lp.id = c_partition_id[i];
      if not found then
        raise exception 'partition not found' using errcode = 'FQ001';
      end if;
      perform 1 from queen_streams.queries q where q.query_no = c_query_no[i] for key share;
      if not found then
        raise exception 'query not found' using errcode = 'FQ002';
      end if;
      insert into foldmq.shards (pid, query_no, partition_id)
        values (c_pid[i], c_query_no[i], c_partition_id[i]) on conflict do nothing;
      select h.version into v_one from foldmq.shards h
       where h.pid = c_pid[i] and h.query_no = c_query_no[i] for update;
    end if;
    if c_version[i] is not null and c_version[i] <> v_one then
      raise exception 'shard version is %, not %', v_one, c_version[i] using errcode = 'FQ005';
    end if;
    v_version[i] := v_one;
  end loop;

  if cardinality(u_pid) > 0 then
    perform 1 from queen.log_partitions lp where lp.pid = any (u_pid) order by lp.pid for update;
  end if;

  for i in 1 .. cardinality(c_pid) loop
    ix := i;
    v_now := clock_timestamp();
    if c_upserts_n[i] > 0 then
      insert into foldmq.state as t (pid, query_no, key, value, window_end, due_ms, updated_at)
        select c_pid[i], c_query_no[i], a.key, a.value::json, a.window_end, a.due, v_now
          from unnest(s_key[v_s + 1 : v_s + c_upserts_n[i]], s_value[v_s + 1 : v_s + c_upserts_n[i]],
                      s_window_end[v_s + 1 : v_s + c_upserts_n[i]],
                      s_due[v_s + 1 : v_s + c_upserts_n[i]]) a (key, value, window_end, due)
        on conflict (pid, query_no, key) do update
          set value = excluded.value, window_end = excluded.window_end, due_ms = excluded.due_ms,
              updated_at = excluded.updated_at;
      v_s := v_s + c_upserts_n[i];
    end if;
    if c_deletes_n[i] > 0 then
      delete from foldmq.state t where t.pid = c_pid[i] and t.query_no = c_query_no[i]
        and t.key = any (x_key[v_x + 1 : v_x + c_deletes_n[i]]);
      v_x := v_x + c_deletes_n[i];
    end if;

    v_emits := 0;
    for j in v_u + 1 .. v_u + c_pushes_n[i] loop
      select o.status, o.base_offset, o.at into v_status, base_offset, at
        from queen.log_push_one_v1(u_pid[j], u_n[j], u_raw[j], u_first_id[j], u_last_id[j],
          u_hashes[j], u_payload[j], u_known[j], u_window_ms[j]) o;
      if v_status = 'missing' then
        raise exception 'sink partition is missing' using errcode = 'FQ008';
      elsif v_status = 'stale' then
        raise exception 'dedup knowledge is stale' using errcode = 'FQ004';
      end if;
      kind := 'push';
      item := j;
      v_emits := v_emits + u_n[j];
      return next;
    end loop;
    v_u := v_u + c_pushes_n[i];
    base_offset := null; at := null; item := null;

    count := null; released := null; v_group := null; v_queue := null;
    if c_ack[i] <> 0 or c_next_lease[i] is not null or c_deads_n[i] > 0 then
      select lp.queue_no, lg.group_no into v_queue, v_group
        from queen.log_partitions lp
        left join queen.log_groups lg on lg.queue_no = lp.queue_no and lg.name = c_group[i]
       where lp.pid = c_pid[i];
    end if;
    if c_ack[i] <> 0 then
      select lc.* into c from queen.log_consumers lc
       where lc.pid = c_pid[i] and lc.group_no = v_group for update;
      v_now := clock_timestamp();
      if not found or c.lease_id is null or c.lease_id is distinct from c_lease[i]
         or c.lease_expires_at < v_now then
        raise exception 'invalid or expired lease' using errcode = 'FQ003';
      end if;
      if c_ack[i] = 1 then
        if c.batch_end is null then
          raise exception 'lease has no recorded batch' using errcode = 'FQ007';
        end if;
        v_new := c.batch_end;
        count := c_count[i];
        released := true;
      elsif c_ack[i] = 3 then
        v_new := c.committed;
        count := 0;
        released := true;
      else
        -- Walk over the frames that exist: offsets removed by retention are not counted.
        v_new := c.committed;
        v_left := c_count[i];
        count := c_count[i];
        released := c_ack[i] = 4;
        if v_left > 0 then
          -- The segment that holds the next offset, if it is still there.
          select coalesce(max(ls.first_offset), 0) into v_start from queen.log_segments ls
           where ls.pid = c_pid[i] and ls.first_offset <= c.committed + 1;
        end if;
        if c_skip_hash[i] is not null and v_left > 0 then
          if not exists (
               select 1 from queen.log_segments ls cross join lateral generate_series(0, ls.n - 1) o
                where ls.pid = c_pid[i] and ls.first_offset between v_start and c.batch_end
                  and ls.first_offset + o > c.committed
                  and ls.first_offset + o <= c.batch_end
                  and substr(ls.hashes, o * 16 + 1, 16) = c_skip_hash[i])
             and exists (
               select 1 from queen.log_segments ls cross join lateral generate_series(0, ls.n - 1) o
                where ls.pid = c_pid[i] and ls.first_offset <= c.committed
                  and ls.first_offset + o <= c.committed
                  and substr(ls.hashes, o * 16 + 1, 16) = c_skip_hash[i]) then
            raise exception 'already applied: the acked message is at or below the cursor, lease kept'
              using errcode = 'FQ006';
          end if;
        end if;
        if v_left > 0 and c.conflated then
          v_new := c.batch_end;
        elsif v_left > 0 then
          for s in
            select ls.first_offset, ls.n from queen.log_segments ls
             where ls.pid = c_pid[i] and ls.first_offset >= v_start
               and ls.first_offset + ls.n > c.committed + 1
             order by ls.first_offset
          loop
            v_from := greatest(s.first_offset, v_new + 1);
            v_to := least(v_from + v_left - 1, s.first_offset + s.n - 1, c.batch_end);
            exit when v_to < v_from;
            v_left := v_left - (v_to - v_from + 1);
            v_new := v_to;
            exit when v_left <= 0 or v_new >= c.batch_end;
          end loop;
          count := c_count[i] - v_left;
        end if;
      end if;
      update queen.log_consumers lc
         set committed = v_new,
             batch_end = case when released then null else lc.batch_end end,
             lease_id = case when released then null else lc.lease_id end,
             lease_expires_at = case when released then null else lc.lease_expires_at end,
             conflated = case when released then false else lc.conflated end,
             retry_count = case when c_ack[i] = 1 then 0 else lc.retry_count end,
             attempt_offset = case when c_ack[i] = 1 then -1 else lc.attempt_offset end,
             attempt = case when c_ack[i] = 1 then 0 else lc.attempt end,
             total_consumed = lc.total_consumed + count,
             last_consumed_at = case when c_ack[i] = 3 then lc.last_consumed_at else v_now end
       where lc.pid = c_pid[i] and lc.group_no = v_group;
    end if;

    for j in v_d + 1 .. v_d + c_deads_n[i] loop
      insert into queen.log_dead_letters (pid, id, queue_no, group_name, first_offset, message_id,
          transaction_id, payload, producer_sub, trace_id, retry_count, error_message, detail,
          created_at)
        values (c_pid[i], d_id[j], v_queue, c_group[i], d_offset[j], d_message_id[j], d_txn[j],
          d_payload[j], d_sub[j], d_trace[j], d_retries[j], d_error[j], d_detail[j]::jsonb, d_at[j]);
    end loop;
    v_d := v_d + c_deads_n[i];

    v_due := null;
    v_wake := null;
    if c_timers[i] <> 0 then
      select min(t.due_ms) into v_due from foldmq.state t
       where t.pid = c_pid[i] and t.query_no = c_query_no[i] and t.due_ms is not null;
      if v_due is not null then
        if c_timers[i] = 1 then
          v_wake := to_timestamp(v_due / 1000.0);
        elsif c_watermark[i] is not null and v_due <= c_watermark[i] then
          v_wake := v_now;
        elsif c_idle_ms[i] > 0 then
          v_wake := v_now + make_interval(secs => c_idle_ms[i] / 1000.0);
        end if;
        if v_wake is not null and c_backoff_ms[i] > 0 then
          v_wake := greatest(v_wake, v_now + make_interval(secs => c_backoff_ms[i] / 1000.0));
        end if;
      end if;
    end if;
    -- An earlier wake time stays when only the silence rule would move it later: the sweep looks
    -- at last_cycle_at and re-arms it, and the row keeps its place in the index.
    update foldmq.shards h
       set version = h.version + 1,
           watermark_ms = coalesce(c_watermark[i], h.watermark_ms),
           next_due_ms = v_due,
           wake_at = case when c_timers[i] = 2 and v_wake > v_now and h.wake_at > v_now
                               and h.wake_at < v_wake then h.wake_at else v_wake end,
           last_cycle_at = case when c_ack[i] in (1, 2, 4) then v_now else h.last_cycle_at end,
           cycles = h.cycles + 1,
           messages = h.messages + c_messages[i],
           emits = h.emits + v_emits,
           tallies = case when c_tallies[i] is null then h.tallies else
             (select jsonb_object_agg(k, coalesce((h.tallies ->> k)::bigint, 0)
                                         + coalesce((c_tallies[i]::jsonb ->> k)::bigint, 0))
                from (select jsonb_object_keys(h.tallies) union
                      select jsonb_object_keys(c_tallies[i]::jsonb)) n (k)) end
     where h.pid = c_pid[i] and h.query_no = c_query_no[i];
    kind := 'cycle';
    version := v_version[i] + 1;
    due := v_due;
    wake_at := v_wake;
    queue_no := v_queue;
    return next;
    version := null; due := null; wake_at := null; queue_no := null;

    if c_next_lease[i] is not null and v_group is not null then
      kind := 'claim';
      for s in
        select * from queen.log_claim_v1(v_group, array[c_pid[i]], c_next_batch[i], 1,
          c_next_bytes[i], c_next_lease[i], c_next_lease_ms[i], false, false, false)
      loop
        outcome := s.outcome; retry_ms := s.retry_ms; from_offset := s.from_offset;
        batch_end := s.batch_end; next_offset := s.next_offset; attempt := s.attempt;
        lease_expires_at := s.lease_expires_at; seg_first := s.seg_first; seg_n := s.seg_n;
        seg_at := s.seg_at; seg_payload := s.seg_payload;
        return next;
      end loop;
      outcome := null; retry_ms := null; from_offset := null; batch_end := null;
      next_offset := null; attempt := null; lease_expires_at := null; seg_first := null;
      seg_n := null; seg_at := null; seg_payload := null;
    end if;
  end loop;
end
$$;
