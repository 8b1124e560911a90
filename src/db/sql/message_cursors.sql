-- Cursors on partitions, with the lease where it is live. Index: log_consumers pkey.
select c.pid, g.name as group_name, c.committed,
       case when c.lease_expires_at >= clock_timestamp() then c.lease_expires_at end as leased_until
  from queen.log_consumers c join queen.log_groups g using (group_no)
 where c.pid = any ($1)
 order by c.pid, g.name
