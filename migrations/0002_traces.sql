-- What operators look at: traces, figures of partitions and groups, addresses of dead letters.

create table queen.message_traces (
  pid bigint not null,
  id uuid not null,
  transaction_id text not null,
  consumer_group text not null,
  event_type text not null,
  data json not null,
  worker_id text,
  created_at timestamptz not null default clock_timestamp(),
  primary key (pid, id)
);
comment on table queen.message_traces is 'Events that workers record about a message; they outlive it. data keeps the text as written.';
create index message_traces_message on queen.message_traces (pid, md5(transaction_id));
comment on index queen.message_traces_message is 'Events of one message; an id may be longer than an index entry.';

create table queen.message_trace_names (
  pid bigint not null,
  trace_id uuid not null,
  name text not null,
  tenant_id uuid not null,
  primary key (pid, trace_id, name)
);
comment on table queen.message_trace_names is 'Names under which a trace is listed.';
create index message_trace_names_name on queen.message_trace_names (tenant_id, name);
comment on index queen.message_trace_names_name is 'Events under one name, and the listing of names.';

create index log_dead_letters_id on queen.log_dead_letters (id);
comment on index queen.log_dead_letters_id is 'A record by the id that the wire shows.';
create index log_dead_letters_address on queen.log_dead_letters (pid, md5(transaction_id));
comment on index queen.log_dead_letters_address is 'Records of one message address; an id may be longer than an index entry.';
create index log_dead_letters_offset on queen.log_dead_letters (pid, first_offset);
comment on index queen.log_dead_letters_offset is 'Which messages of a stretch are dead letters, and their number by partition.';

create view queen.partition_figures as
  select p.queue_no, p.pid, p.id, p.name, p.created_at, p.next_offset,
         p.next_offset - l.start_offset as total,
         d.pending,
         least(c.leased, d.pending) as processing,
         greatest(0, p.next_offset - l.start_offset - d.pending - x.dead_letters) as completed,
         x.dead_letters,
         s.created_at as oldest_at,
         case when s.created_at is not null then p.last_created_at end as newest_at,
         c.total_consumed, c.last_consumed_at
    from queen.log_partitions p
    left join lateral (
      select ls.first_offset, ls.created_at from queen.log_segments ls
       where ls.pid = p.pid order by ls.first_offset limit 1) s on true
    cross join lateral (select coalesce(s.first_offset, p.next_offset) as start_offset) l
    cross join lateral (
      select min(lc.committed) filter (where lg.name <> '__QUEUE_MODE__') as named,
             min(lc.committed) filter (where lg.name = '__QUEUE_MODE__') as queue_mode,
             coalesce(sum(greatest(0, lc.batch_end - greatest(lc.committed, l.start_offset - 1)))
               filter (where lc.lease_expires_at >= clock_timestamp()), 0)::bigint as leased,
             coalesce(sum(lc.total_consumed), 0)::bigint as total_consumed,
             max(lc.last_consumed_at) as last_consumed_at
        from queen.log_consumers lc join queen.log_groups lg using (group_no)
       where lc.pid = p.pid) c
    cross join lateral (
      select greatest(0, p.next_offset - 1 - greatest(coalesce(c.named, c.queue_mode, -1),
                                                      l.start_offset - 1)) as pending) d
    cross join lateral (
      select count(*) as dead_letters from queen.log_dead_letters ld where ld.pid = p.pid) x;
comment on view queen.partition_figures is 'Counts by partition: pending is what the slowest named group with a cursor there has left; without one, the queue mode.';

create view queen.group_figures as
  select g.queue_no, g.group_no, g.name as group_name, p.pid, p.id as partition_id,
         p.name as partition_name,
         c.pid is not null as has_cursor,
         l.lag,
         o.created_at as oldest_at,
         case when v.leased
              then greatest(0, c.batch_end - greatest(c.committed, l.start_offset - 1))
              else 0 end as processing,
         v.leased,
         coalesce(c.total_consumed, 0) as total_consumed,
         c.last_consumed_at
    from queen.log_groups g
    join queen.log_partitions p using (queue_no)
    left join queen.log_consumers c on c.pid = p.pid and c.group_no = g.group_no
    cross join lateral (
      select coalesce(c.lease_expires_at >= clock_timestamp(), false) as leased) v
    left join lateral (
      select ls.first_offset from queen.log_segments ls
       where ls.pid = p.pid order by ls.first_offset limit 1) s on true
    cross join lateral (
      select coalesce(s.first_offset, p.next_offset) as start_offset,
             greatest(0, p.next_offset - 1 - greatest(coalesce(c.committed, -1),
               coalesce(s.first_offset, p.next_offset) - 1)) as lag) l
    left join lateral (
      select ls.created_at from queen.log_segments ls
       where l.lag > 0 and ls.pid = p.pid and ls.first_offset <= p.next_offset - l.lag
       order by ls.first_offset desc limit 1) o on true;
comment on view queen.group_figures is 'What a group has left, by partition of its queue; a partition without its cursor is all left.';
