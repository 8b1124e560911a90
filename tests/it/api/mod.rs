//! api tests.
