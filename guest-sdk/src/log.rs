//! Log lines: in the broker through the import `log`, natively into a buffer of the test's thread.
//!
//! Lines are bounded in number and size by the broker. They belong to the record of a call, not to
//! its result, and survive a panic.

use crate::model::Level;

/// Writes a line for the author of the fold.
pub fn debug(text: impl AsRef<str>) {
    write(Level::Debug, text.as_ref());
}

/// Writes a line for the operator, nothing to do.
pub fn info(text: impl AsRef<str>) {
    write(Level::Info, text.as_ref());
}

/// Writes a line for the operator, worth a look.
pub fn warn(text: impl AsRef<str>) {
    write(Level::Warn, text.as_ref());
}

/// Writes a line about something broken.
pub fn error(text: impl AsRef<str>) {
    write(Level::Error, text.as_ref());
}

/// Writes a line of the given level.
#[cfg(target_arch = "wasm32")]
pub fn write(level: Level, text: &str) {
    crate::guest::log(level, text);
}

/// Writes a line of the given level.
#[cfg(not(target_arch = "wasm32"))]
pub fn write(level: Level, text: &str) {
    LINES.with_borrow_mut(|lines| lines.push((level, text.to_owned())));
}

#[cfg(not(target_arch = "wasm32"))]
std::thread_local! {
    static LINES: std::cell::RefCell<Vec<(Level, String)>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

/// Takes the lines that this thread has written so far. For tests: in the broker the lines are
/// gone already.
///
/// ```
/// foldmq_guest::log::warn("odd");
/// assert_eq!(foldmq_guest::log::take().len(), 1);
/// ```
#[must_use]
pub fn take() -> Vec<(Level, String)> {
    #[cfg(target_arch = "wasm32")]
    return Vec::new();
    #[cfg(not(target_arch = "wasm32"))]
    LINES.with_borrow_mut(std::mem::take)
}
