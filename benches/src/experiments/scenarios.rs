//! The experiments that measure rows, on one backend after the other.

pub(super) mod command;
pub(super) mod contended;
pub(super) mod crash;
pub(super) mod crowded;
pub(super) mod degraded;
pub(super) mod held;
pub(super) mod herd;
pub(super) mod migration;
pub(super) mod peers;
pub(super) mod tasks;
pub(super) mod throughput;
pub(super) mod uncontended;
