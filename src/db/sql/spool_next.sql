-- The oldest messages of the spool. $1 most rows.
select * from foldmq.spool order by id limit $1
