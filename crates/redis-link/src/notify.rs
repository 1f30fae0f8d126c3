//! Notifications: what servers push to waiters, and who believes it.

pub mod acquisitions;
pub mod key_watch;
pub(crate) mod message;
pub mod proof;
pub mod push;
pub(crate) mod push_connection;
pub(crate) mod push_rights;
pub mod unclaimed_grant;
