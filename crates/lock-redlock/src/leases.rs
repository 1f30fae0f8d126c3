//! Locks on a quorum: waits, renewal, release, roll-back.

pub(crate) mod lease;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod rollback;
pub(crate) mod wait;
pub(crate) mod wait_queue;
