-- Removes the row of an emptied queue; registrations follow by cascade.
delete from queen.queues where queue_no = $1
