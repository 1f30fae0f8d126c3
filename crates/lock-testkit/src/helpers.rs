//! What many tests do.

pub mod cancel;
pub(crate) mod log_capture;
pub(crate) mod migration;
pub(crate) mod steps;
pub(crate) mod tier;
