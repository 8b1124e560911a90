-- Dead letters of a tenant, newest failure first. $1 tenant, $2 queue, $3 partition, $4 group,
-- $5 failed from, $6 failed before (null: any), $7 limit, $8 offset. Index: log_dead_letters_queue.
with page as (
  select d.pid, d.id
    from queen.queues q
    join queen.log_dead_letters d on d.queue_no = q.queue_no
    left join queen.log_partitions p on p.pid = d.pid
   where q.tenant_id = $1 and ($2::text is null or q.name = $2)
     and ($3::text is null or p.name = $3) and ($4::text is null or d.group_name = $4)
     and ($5::timestamptz is null or d.failed_at >= $5)
     and ($6::timestamptz is null or d.failed_at < $6)
   order by d.failed_at desc, d.id desc
   limit $7 offset $8)
select d.*, q.name as queue, p.name as partition, p.id as partition_id
  from page
  join queen.log_dead_letters d on d.pid = page.pid and d.id = page.id
  join queen.queues q on q.queue_no = d.queue_no
  left join queen.log_partitions p on p.pid = d.pid
 order by d.failed_at desc, d.id desc
