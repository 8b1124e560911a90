-- Partitions of a queue with their counts, by name.
select * from queen.partition_figures where queue_no = $1 order by name
