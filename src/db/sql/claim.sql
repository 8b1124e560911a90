-- Leases batches. Function log_claim_v1.
select * from queen.log_claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
