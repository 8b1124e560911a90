//! Where an emitted value comes from.

use std::rc::Rc;

use crate::intake::Source;
use crate::time::Timestamp;

/// A window that has closed.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The key of its records.
    pub key: String,
    /// Its first instant.
    pub start: Timestamp,
    /// The first instant after it.
    pub end: Timestamp,
    source: Rc<Source>,
}

impl Closed {
    pub(crate) fn new(key: String, start: i64, end: i64, source: Rc<Source>) -> Self {
        Self { key, start: Timestamp(start), end: Timestamp(end), source }
    }

    /// The start as state keys spell it, `YYYY-MM-DDTHH:MM:SS.mmmZ`.
    #[must_use]
    pub fn window_key(&self) -> String {
        self.start.iso()
    }

    /// Name of the source partition.
    #[must_use]
    pub fn partition(&self) -> &str {
        &self.source.partition
    }

    /// Id of the source partition.
    #[must_use]
    pub fn partition_id(&self) -> &str {
        &self.source.partition_id
    }
}

/// A record that passed without a window.
#[derive(Debug, Clone)]
pub struct Passed {
    /// Its key.
    pub key: String,
    source: Rc<Source>,
}

impl Passed {
    pub(crate) fn new(key: String, source: Rc<Source>) -> Self {
        Self { key, source }
    }

    /// Name of the source partition.
    #[must_use]
    pub fn partition(&self) -> &str {
        &self.source.partition
    }

    /// Id of the source partition.
    #[must_use]
    pub fn partition_id(&self) -> &str {
        &self.source.partition_id
    }
}

/// Where an emitted value comes from: [`Closed`] or [`Passed`].
pub trait Origin {
    /// Name of the partition that a sink message goes to by default: that of the source.
    fn default_partition(&self) -> &str;
}

impl Origin for Closed {
    fn default_partition(&self) -> &str {
        self.source.name()
    }
}

impl Origin for Passed {
    fn default_partition(&self) -> &str {
        self.source.name()
    }
}
