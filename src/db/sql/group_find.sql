-- A registration by queue and group name.
select * from queen.log_groups where queue_no = $1 and name = $2
