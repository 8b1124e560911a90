-- Removes replayed messages; a row another broker replayed is missing. $1 id[].
delete from foldmq.spool where id = any ($1)
