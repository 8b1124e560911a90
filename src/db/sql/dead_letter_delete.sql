-- Removes the dead letters of a message address. $1 pid, $2 transaction id.
-- Index: log_dead_letters_address.
delete from queen.log_dead_letters
 where pid = $1 and md5(transaction_id) = md5($2) and transaction_id = $2
returning id
