//! The experiments: each measures rows or figures, and may have a claim that judges these; and the fault table and the soak.

pub(crate) mod bench;
pub(crate) mod claim;
mod claims;
pub(crate) mod experiment;
pub(crate) mod faults;
pub(crate) mod list;
mod parts;
mod prelude;
pub(crate) mod runner;
mod scenarios;
pub(crate) mod soak;
pub(crate) mod target;
