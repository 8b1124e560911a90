-- Removes the dead letters of a queue; of one group where $3 names it. Index: log_dead_letters_queue.
with gone as (
  delete from queen.log_dead_letters d using queen.queues q
   where q.tenant_id = $1 and q.name = $2 and d.queue_no = q.queue_no
     and ($3::text is null or d.group_name = $3)
  returning d.id)
select count(*) as n from gone
