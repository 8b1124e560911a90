-- Locks a partition row before dead letters are touched.
select pid from queen.log_partitions where pid = $1 for update
