-- How many messages wait in the spool.
select count(*) as n from foldmq.spool
