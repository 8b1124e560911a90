-- Creates partitions that are missing, in the given order (sorted by pid).
-- The key-share lock on the queue keeps a registration in mode "new" from missing a partition.
-- Refuses a pid that already belongs to another (queue, name): FQ010.
create or replace function queen.log_partitions_ensure_v1(
  p_queue_no bigint[], p_pid bigint[], p_id uuid[], p_name text[])
returns void
language plpgsql as $$
declare
  i integer;
begin
  perform 1 from queen.queues where queue_no = any (p_queue_no) order by queue_no for key share;
  for i in 1 .. cardinality(p_pid) loop
    insert into queen.log_partitions (pid, queue_no, name, id)
      values (p_pid[i], p_queue_no[i], p_name[i], p_id[i])
      on conflict (pid) do nothing;
    if not found then
      perform 1 from queen.log_partitions
        where pid = p_pid[i] and queue_no = p_queue_no[i] and name = p_name[i];
      if not found then
        raise exception 'partition id collision on % (%)', p_name[i], p_id[i]
          using errcode = 'FQ010';
      end if;
    end if;
  end loop;
end
$$;
