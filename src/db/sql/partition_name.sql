-- Wire id and name of a partition.
select id, name from queen.log_partitions where pid = $1
