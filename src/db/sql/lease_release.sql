-- Gives a lease back without charge: the batch is claimable at once. $1 lease, $2 pids, $3 whether it was delivered.
update queen.log_consumers
   set batch_end = null, lease_id = null, lease_expires_at = null, conflated = false,
       attempt = case when $3 then attempt else greatest(attempt - 1, 0) end
 where lease_id = $1 and pid = any ($2)
returning pid, group_no
