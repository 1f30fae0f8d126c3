//! The clock of leases, and how long a lock lasts by it.

pub mod clock;
pub mod drift;
pub(crate) mod expiry;
pub(crate) mod validity;
