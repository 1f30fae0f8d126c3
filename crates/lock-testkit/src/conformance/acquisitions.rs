//! Who gets a lock, and who waits for it or no longer does.

pub(super) mod cancellation;
pub(super) mod exclusion;
pub(super) mod waiting;
