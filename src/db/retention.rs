//! Removal of messages by age.

use super::{Db, Error};

impl Db {
    /// Removes up to `most` segments that are given up; gives how many, and their messages.
    ///
    /// # Errors
    /// When the store fails; the next call finds what is left.
    pub async fn retention(&self, most: i64) -> Result<(usize, i64), Error> {
        let rows =
            super::retried(async || self.query(include_str!("sql/retention.sql"), &[&most]).await)
                .await?;
        let messages = rows.iter().map(|row| i64::from(row.get::<_, i32>("n"))).sum();
        Ok((rows.len(), messages))
    }
}
