//! What the cursors of a partition say of its messages.

use crate::db::message::CursorRow;
use crate::types::id::QUEUE_MODE;

/// State of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// A group gave it up.
    DeadLetter,
    /// Everybody who counts has passed it.
    Completed,
    /// Somebody holds a batch of its partition.
    Processing,
    /// None of these.
    Pending,
}

/// The cursors of one partition.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    named: Vec<CursorRow>,
    queue_mode: Option<CursorRow>,
}

impl Progress {
    /// Sorts cursors of one partition.
    #[must_use]
    pub fn of(cursors: Vec<CursorRow>) -> Self {
        let (mut queue_mode, named): (Vec<_>, Vec<_>) =
            cursors.into_iter().partition(|c| c.group == QUEUE_MODE);
        Self { named, queue_mode: queue_mode.pop() }
    }

    /// The cursor of the queue mode.
    #[must_use]
    pub fn queue_mode(&self) -> Option<&CursorRow> {
        self.queue_mode.as_ref()
    }

    /// Every cursor, the named ones first.
    pub fn cursors(&self) -> impl Iterator<Item = &CursorRow> {
        self.named.iter().chain(&self.queue_mode)
    }

    /// The named groups.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|c| c.group.as_str())
    }

    /// Named groups that have passed an offset.
    #[must_use]
    pub fn consumed_by(&self, offset: i64) -> usize {
        self.named.iter().filter(|c| c.committed >= offset).count()
    }

    /// State by all cursors, the first that holds. The queue mode counts only where no named group
    /// has a cursor: group-less pops that were given up long ago must not hold anything back.
    #[must_use]
    pub fn status(&self, offset: i64, dead: bool) -> MessageStatus {
        let completed = if self.named.is_empty() {
            self.queue_mode.as_ref().is_some_and(|c| c.committed >= offset)
        } else {
            self.consumed_by(offset) == self.named.len()
        };
        if dead {
            MessageStatus::DeadLetter
        } else if completed {
            MessageStatus::Completed
        } else if self.cursors().any(|c| c.leased_until.is_some()) {
            MessageStatus::Processing
        } else {
            MessageStatus::Pending
        }
    }

    /// State by the cursor of the queue mode alone.
    #[must_use]
    pub fn queue_status(&self, offset: i64) -> MessageStatus {
        match &self.queue_mode {
            Some(c) if c.committed >= offset => MessageStatus::Completed,
            Some(c) if c.leased_until.is_some() => MessageStatus::Processing,
            _ => MessageStatus::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::types::id::Pid;

    fn cursor(group: &str, committed: i64, leased: bool) -> CursorRow {
        let leased_until = leased.then_some(Timestamp::UNIX_EPOCH);
        CursorRow { pid: Pid(1), group: group.to_owned(), committed, leased_until }
    }

    /// control 32: the slowest named group decides; the queue mode only where there is none.
    #[test]
    fn named_groups_decide_before_the_queue_mode() {
        use MessageStatus::{Completed, DeadLetter, Pending, Processing};
        let nobody = Progress::default();
        assert_eq!((nobody.status(0, false), nobody.status(0, true)), (Pending, DeadLetter));
        let queue = Progress::of(vec![cursor(QUEUE_MODE, 3, false)]);
        assert_eq!((queue.status(3, false), queue.status(4, false)), (Completed, Pending));
        let both = [cursor("g", 5, false), cursor(QUEUE_MODE, 1, true), cursor("h", 7, false)];
        let both = Progress::of(both.to_vec());
        assert_eq!((both.status(5, false), both.status(6, false)), (Completed, Processing));
        assert_eq!((both.queue_status(1), both.queue_status(5)), (Completed, Processing));
        assert_eq!((both.consumed_by(5), both.consumed_by(6), both.consumed_by(8)), (2, 1, 0));
        assert_eq!(both.status(0, true), DeadLetter);
    }
}
