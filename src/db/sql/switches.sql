-- The maintenance switches that are set.
select name, enabled from foldmq.switches
