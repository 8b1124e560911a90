//! Hosted folds.

mod feed;
