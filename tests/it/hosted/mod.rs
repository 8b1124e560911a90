//! Hosted folds.

mod feed;
mod life;
mod modules;
mod poison;
mod windows;
