-- The bytes of a module.
select bytes from foldmq.modules where tenant_id = $1 and hash = $2
