//! The errors of this backend, beside those of the client.

use std::time::Duration;

use lock_core::{Capabilities, Error, ErrorKind, LeaseKind, Outcome, Result};
use redis_link::error::Endpoint;

/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "redis";
/// The shortest time to live: below it the drift margin and a round trip eat the lease up.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);

/// Refuses a ttl that is too short.
pub(crate) fn check_ttl(ttl: Duration, clock_skew: Duration) -> Result<()> {
    let min = MIN_TTL + clock_skew;
    Capabilities::new(BACKEND, LeaseKind::ttl(ttl, min)).check_ttl(ttl, min)
}

/// The answer to a grant came after its lease.
pub(crate) fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "the server granted the lock, but its answer took longer than the ttl of {ttl:?}"
        ))
        .with_hint("use a longer ttl; the lock is given back")
        .with_outcome(Outcome::Applied)
}

/// Fewer replicas have a lock than the configuration asks for.
pub(crate) fn not_replicated(server: &Endpoint, have: u32, wanted: u32, patience: Duration) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            &format!("only {have} of {wanted} replicas had the lock within {patience:?}"),
        )
        .with_hint("the lock is given back; try again, bring replicas back, or lower wait_replicas")
        .with_outcome(Outcome::Applied)
}

/// A lock was granted, and does not exist any more when replicas are to have it.
pub(crate) fn lost_before_replicated(server: &Endpoint) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            "the lock was gone before replicas could have it: it ended, was broken, or another server is the master now",
        )
        .with_hint("what may be left is given back; try again")
        .with_outcome(Outcome::Applied)
}

/// Whether a script that changes several keys has changed none: a server that lacks a right or memory halfway keeps
/// what was done until then.
pub(crate) fn surely_not_begun(error: &Error) -> bool {
    error.outcome() == Outcome::NotApplied && error.kind() == ErrorKind::Unavailable
}
