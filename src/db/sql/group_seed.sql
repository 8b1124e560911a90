-- Registers a group and sets its cursors on the partitions that exist.
-- $1 queue_no, $2 name, $3 mode, $4 start instant, $5 conflation. One row if this call made it.
-- The queue row is locked by the caller, so that no partition is born meanwhile.
with made as (
  insert into queen.log_groups (queue_no, name, mode, start_at, conflation)
    values ($1, $2, $3, $4, $5)
    on conflict (queue_no, name) do nothing
    returning group_no),
seeded as (
  insert into queen.log_consumers (pid, group_no, committed)
  select p.pid, made.group_no,
         case when $3 = 'from' then coalesce(
           (select min(s.first_offset) from queen.log_segments s
             where s.pid = p.pid and s.created_at >= $4), p.next_offset) - 1
         else p.next_offset - 1 end
    from made, queen.log_partitions p
   where p.queue_no = $1 and $3 <> 'all' and p.next_offset > 0
  on conflict do nothing)
select group_no from made
