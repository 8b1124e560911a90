-- A queue by tenant and name. Index: queues (tenant_id, name).
select * from queen.queues where tenant_id = $1 and name = $2
