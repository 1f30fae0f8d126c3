//! The command line, and what its commands do.

pub(crate) mod compare;
pub(crate) mod options;
