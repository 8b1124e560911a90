-- Removes a queue with everything under it; gives its number and its partitions.
-- Locks the queue row first, so that no partition is born meanwhile.
with gone as (
  select queue_no from queen.queues where tenant_id = $1 and name = $2 for update),
parts as (
  delete from queen.log_partitions where queue_no in (select queue_no from gone) returning pid),
segs as (delete from queen.log_segments where pid in (select pid from parts)),
curs as (delete from queen.log_consumers where pid in (select pid from parts)),
dead as (delete from queen.log_dead_letters where queue_no in (select queue_no from gone)),
rows as (delete from foldmq.state where pid in (select pid from parts)),
shards as (delete from foldmq.shards where pid in (select pid from parts))
select queue_no from gone
