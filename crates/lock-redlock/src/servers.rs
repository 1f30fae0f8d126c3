//! The masters: their health, their right to vote, round trips, and requests to all of them.

pub(crate) mod fan_out;
pub(crate) mod late_policy;
pub(crate) mod master;
pub(crate) mod master_registry;
pub(crate) mod masters;
pub(crate) mod quarantine;
pub(crate) mod round_trip;
