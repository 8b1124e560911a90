-- Queues of a tenant by namespace and task; an empty filter is absent.
select * from queen.queues
 where tenant_id = $1 and ($2 = '' or namespace = $2) and ($3 = '' or task = $3)
 order by queue_no
