-- Segments of queues and their stored bytes. $1 queue_no[]. Reads every segment row, no payload.
select p.queue_no, count(*) as segments,
       sum(octet_length(s.payload) + octet_length(s.hashes))::bigint as bytes
  from queen.log_partitions p join queen.log_segments s using (pid)
 where p.queue_no = any ($1)
 group by p.queue_no
