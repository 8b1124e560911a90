-- Appends segments, each with its own outcome. Function log_push_many_v1.
select * from queen.log_push_many_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)
