-- Removes the cursors of groups, locked in order. Index: log_consumers_group.
with locked as (
  select pid, group_no from queen.log_consumers
   where group_no = any ($1) order by pid, group_no for update)
delete from queen.log_consumers c using locked
 where c.pid = locked.pid and c.group_no = locked.group_no
returning c.pid, c.group_no
