-- Settles messages by transaction hash. Function log_settle_v1.
select * from queen.log_settle_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
  $14, $15, $16)
