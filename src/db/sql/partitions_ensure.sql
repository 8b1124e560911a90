-- Creates missing partitions. $1 queue_no[], $2 pid[], $3 id[], $4 name[].
select queen.log_partitions_ensure_v1($1, $2, $3, $4)
