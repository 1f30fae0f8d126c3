//! The errors of this backend, in addition to those of the client.

use std::time::Duration;

use lock_core::migration::Tombstone;
use lock_core::{Capabilities, Error, ErrorKind, LeaseKind, Outcome, Result};
use redis_link::error::{Endpoint, wrote_nothing};

/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "redis";
/// The shortest ttl: below it, the drift margin and a round trip use up the lease.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// The tombstone of a lock that has moved, whose text is missing.
pub(crate) const MOVED_SOMEWHERE: &str = "polylock:moved";

/// Rejects a ttl that is too short.
pub(crate) fn check_ttl(ttl: Duration, clock_skew: Duration) -> Result<()> {
    let min = MIN_TTL + clock_skew;
    Capabilities::new(BACKEND, LeaseKind::ttl(ttl, min)).check_ttl(ttl, min)
}

/// Fewer replicas have a granted lock than the configuration requires.
pub(crate) fn not_replicated(server: &Endpoint, have: u32, wanted: u32, timeout: Duration) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            &format!("only {have} of {wanted} replicas had the lock within {timeout:?}"),
        )
        .with_hint("the lock is released; try again, bring replicas back, or lower wait_replicas")
        .with_outcome(Outcome::Applied)
}

/// A granted lock was lost before the replicas confirmed it.
pub(crate) fn lost_before_replicated(server: &Endpoint) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            "the lock was lost before replicas confirmed it: it expired, was broken, or another server is the master now",
        )
        .with_hint("try again; a lock that may remain is released")
        .with_outcome(Outcome::Applied)
}

/// The clock of this host was stepped forward while a request was under way that says when its lease ends.
pub(crate) fn stepped(server: &Endpoint) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            "the clock of this host was set forward while the request was under way",
        )
        .with_hint("it is sent again; check the time synchronisation (chrony, ntpd) of all hosts")
        .with_outcome(Outcome::Unknown)
}

/// The clock of this host was set back since a lease was extended last.
pub(crate) fn set_back(server: &Endpoint) -> Error {
    server
        .error(
            ErrorKind::Unavailable,
            "the clock of this host was set back: the lock is not extended until its clock has passed the last extension",
        )
        .with_hint("check the time synchronisation (chrony, ntpd) of all hosts")
        .with_outcome(Outcome::Unknown)
}

/// The error for a lock that has moved, with the tombstone in its place.
pub(crate) fn moved(text: &str) -> Error {
    match Tombstone::parse(text) {
        Some(tombstone) => tombstone.moved(BACKEND),
        None if text == MOVED_SOMEWHERE => moved_somewhere(),
        None => later_format(text),
    }
}

/// Whether a script that writes several keys has surely written none. A script that fails halfway, for want of a right or
/// of memory, keeps its earlier writes. One whose keys are in several slots does not begin, nor does one that the user may not run.
pub(crate) fn changed_nothing(error: &Error) -> bool {
    error.outcome() == Outcome::NotApplied
        && (matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::InvalidName) || wrote_nothing(error))
}

/// The error of a script that writes: if it was refused, a part of it may have been applied.
pub(crate) fn perhaps_applied(error: Error) -> Error {
    match error.outcome() == Outcome::NotApplied && !changed_nothing(&error) {
        true => error.with_outcome(Outcome::Applied),
        false => error,
    }
}

fn moved_somewhere() -> Error {
    Error::new(ErrorKind::Moved, BACKEND)
        .with_message(
            "the lock has moved: its time is that of a lock that has moved, and the text beside it, which says where to, is \
             missing",
        )
        .with_hint("find out which migration moved it, and connect with its migrate:// URL; without one, delete the key")
}

fn later_format(text: &str) -> Error {
    Error::new(ErrorKind::Moved, BACKEND)
        .with_message(format!("the lock has moved, says a text of a later version: {text:?}"))
        .with_hint("use the version of this library that wrote it, or a later one")
}
