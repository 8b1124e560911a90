//! streams tests.
