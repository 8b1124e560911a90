-- The first offset committed at or after an instant; the next offset where there is none.
-- $1 pid[], $2 instants[]; one row a pair, in their order. Commit times do not run backwards inside
-- a partition, so segments are bisected: a few index probes, however long the log is.
select coalesce(r.lo, 0) as first_offset
  from unnest($1::bigint[], $2::timestamptz[]) with ordinality w (pid, at, ix)
  left join queen.log_partitions p on p.pid = w.pid
  left join lateral (
    with recursive span (lo, hi) as (
      select coalesce((select min(s.first_offset) from queen.log_segments s where s.pid = p.pid),
                      p.next_offset), p.next_offset
      union all
      select case when s.created_at < w.at then s.first_offset + s.n else span.lo end,
             case when s.created_at < w.at then span.hi else s.first_offset end
        from span
        cross join lateral (
          select ls.first_offset, ls.n, ls.created_at from queen.log_segments ls
           where ls.pid = p.pid and ls.first_offset <= (span.lo + span.hi) / 2
           order by ls.first_offset desc limit 1) s
       where span.lo < span.hi)
    select span.lo from span where span.lo >= span.hi) r on true
 order by w.ix
