-- Removes messages that their queue's options give up, oldest first: $1 most segments.
-- A segment goes when all its messages do: they share their time of commit. Messages that the
-- slowest group has not passed are kept by completed retention, and by it alone.
-- Index: log_segments pkey, log_consumers pkey.
with doomed as (
  select s.pid, s.first_offset, s.n, p.queue_no
    from queen.queues q
    join queen.log_partitions p on p.queue_no = q.queue_no and p.next_offset > 0
    cross join lateral (
      select ls.pid, ls.first_offset, ls.n, ls.created_at from queen.log_segments ls
       where ls.pid = p.pid order by ls.first_offset limit 64) s
   where ((q.retention_enabled and (q.retention_s > 0 or q.completed_retention_s > 0))
          or q.max_wait_time_s > 0)
     and ((q.retention_enabled and q.retention_s > 0
           and s.created_at < clock_timestamp() - make_interval(secs => q.retention_s))
       or (q.max_wait_time_s > 0
           and s.created_at < clock_timestamp() - make_interval(secs => q.max_wait_time_s))
       or (q.retention_enabled and q.completed_retention_s > 0
           and s.created_at < clock_timestamp() - make_interval(secs => q.completed_retention_s)
           and s.first_offset + s.n - 1 <= (select min(c.committed) from queen.log_consumers c
                                             where c.pid = s.pid)))
   limit $1)
delete from queen.log_segments s using doomed d
 where s.pid = d.pid and s.first_offset = d.first_offset
returning s.pid, d.queue_no, s.n
