//! The errors of a store, for users.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Outcome};

/// A request got no answer. A read has changed nothing; a swap may be executed at any time.
pub(crate) fn silent(name: &'static str, timeout: Duration, outcome: Outcome) -> Error {
    Error::new(ErrorKind::Unavailable, name)
        .with_message(format!("the store did not answer within {timeout:?}"))
        .with_hint("check that it is reachable and not overloaded")
        .with_code("silent")
        .with_outcome(outcome)
}

/// A swap was sent twice, and the value is that of another one, which came before or after it.
#[cfg(any(feature = "etcd", feature = "mysql"))]
pub(crate) fn overtaken(name: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, name)
        .with_message("a request was not answered, and others have changed the record since")
        .with_hint("try again")
        .with_outcome(Outcome::Unknown)
}

/// Every swap came too late.
pub(crate) fn contended(name: &'static str, timeout: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, name)
        .with_message(format!("others changed the record before each swap, for {timeout:?}"))
        .with_hint("use more locks, or fewer clients that wait for one")
        .with_code("contended")
        .with_outcome(Outcome::NotApplied)
}

/// The next record could not be read.
pub(crate) fn no_more_tokens(name: &'static str, key: &str) -> Error {
    Error::new(ErrorKind::Exhausted, name)
        .with_message(format!("the tokens of the key {key:?} are used up"))
        .with_hint("they were raised too far: use a lock of another name")
        .with_outcome(Outcome::NotApplied)
}

/// The value of a lock is not one of ours.
pub(crate) fn not_a_record(name: &'static str, key: &str, source: serde_json::Error) -> Error {
    Error::new(ErrorKind::Unexpected, name)
        .with_message(format!("the value of the key {key:?} is no record of a lock"))
        .with_hint("something else writes there: use another prefix or table, or delete the value while nobody uses the lock")
        .caused_by(source)
}

/// The record is of another release of this library.
pub(crate) fn other_format(name: &'static str, key: &str, format: u32, ours: u32) -> Error {
    Error::new(ErrorKind::Unsupported, name)
        .with_message(format!(
            "the record of the key {key:?} has the format {format}, and this release knows {ours}"
        ))
        .with_hint("use the same release of polylock in all clients of a store")
}

/// The store lets a swap on an old version through.
pub(crate) fn swaps_on_old_versions(name: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, name)
        .with_message(format!("the store {what}: two clients could have a lock at once"))
        .with_hint("use a store, or a release of it, that honours conditional writes")
        .with_code("unconditional")
}
