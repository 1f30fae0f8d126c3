//! How a lock is acquired, waited for, kept and released by nodes.

pub(crate) mod acquire;
pub(crate) mod acquisitions;
pub(crate) mod created;
pub(crate) mod downgrade;
pub(crate) mod ephemeral;
pub(crate) mod lease;
pub(crate) mod lost_answer;
pub(crate) mod queue;
pub(crate) mod recipe;
pub(crate) mod release;
pub(crate) mod revoke;
pub(crate) mod rollback;
pub(crate) mod turns;
pub(crate) mod unpolled;
pub(crate) mod wait;
