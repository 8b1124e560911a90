-- What a group has left, by partition of a queue; a partition or a group that is not known to the
-- view is all left. $1 queue_no, $2 group.
select f.name, coalesce(g.lag, f.total) as pending, coalesce(g.processing, 0) as processing
  from queen.partition_figures f
  left join queen.group_figures g
    on g.queue_no = $1 and g.group_name = $2 and g.pid = f.pid
 where f.queue_no = $1
 order by f.name
