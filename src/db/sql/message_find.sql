-- The newest message of a partition with that hash, not older than an offset. $1 pid, $2 hash,
-- $3 first offset to look at. Index: log_segments pkey; reads 16 bytes a message.
select s.first_offset + (x.at - 1) / 16 as found
  from queen.log_segments s
  cross join lateral (select position($2::bytea in s.hashes) as at) x
 where s.pid = $1 and s.first_offset >= $3 and x.at % 16 = 1
 order by s.first_offset desc limit 1
