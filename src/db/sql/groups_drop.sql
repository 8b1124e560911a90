-- Removes registrations. Claims give no new cursor to one that is locked here.
delete from queen.log_groups where group_no = any ($1)
