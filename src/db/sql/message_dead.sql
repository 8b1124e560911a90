-- Offsets of dead letters inside stretches: $1 pid[], $2 first offset[], $3 last offset[].
-- Index: log_dead_letters_offset.
select distinct d.pid, d.first_offset
  from unnest($1::bigint[], $2::bigint[], $3::bigint[]) w (pid, from_offset, to_offset)
  join queen.log_dead_letters d on d.pid = w.pid
   and d.first_offset between w.from_offset and w.to_offset
