-- Storage options: they make things faster and may be refused elsewhere without harm.
-- Applied outside the numbered migrations, statement by statement; a refusal is a warning.

alter table queen.log_partitions set (fillfactor = 50);
alter table queen.log_consumers set (fillfactor = 50);
alter table foldmq.shards set (fillfactor = 50);
alter table foldmq.state set (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
alter table queen.log_segments alter column payload set storage external;
alter table queen.log_segments alter column hashes set storage external;
alter table foldmq.modules alter column bytes set storage external;
