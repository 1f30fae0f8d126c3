//! Locks that several have at once.

pub(super) mod downgrade;
pub(super) mod modes;
pub(super) mod permits;
pub(super) mod readers;
pub(super) mod sharers;
