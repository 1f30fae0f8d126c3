//! The command line, and what its commands do.

pub(crate) mod compare;
pub(crate) mod faults;
pub(crate) mod options;
pub(crate) mod soak;
