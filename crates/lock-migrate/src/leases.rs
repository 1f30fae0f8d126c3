//! The leases of a guard on one store or on both, and shadows of them.

pub(crate) mod change;
pub(crate) mod half;
pub(crate) mod halves;
pub(crate) mod later;
pub(crate) mod lead;
pub(crate) mod lease;
pub(crate) mod one;
pub(crate) mod shadow;
pub(crate) mod shadow_counts;
pub(crate) mod tombstone_watch;
pub(crate) mod tombstones;
