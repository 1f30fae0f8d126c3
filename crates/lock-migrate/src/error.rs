//! The errors of a migration, with the texts for users.

use lock_core::{Error, ErrorKind, Outcome};

/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "migrate";

pub(crate) fn invalid(message: impl Into<String>, hint: &'static str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND).with_message(message).with_hint(hint)
}

/// The error of an old store that has no tombstones and no claim.
pub(crate) fn no_source(backend: &str) -> Error {
    invalid(format!("locks cannot move from {backend}"), "move from redis://")
}

/// The error of a new store that keeps no record.
pub(crate) fn no_target(backend: &str) -> Error {
    invalid(format!("locks cannot move to {backend}"), "move to zk://, with the recipe queue")
}

pub(crate) fn no_seal() -> Error {
    invalid(
        "the rung new needs the seal of the migration, which is not written yet",
        "use the rung move, or write the seal by `polylock migrate finish`",
    )
}

/// The error before this process takes part in the migration: what has moved cannot be judged yet.
pub(crate) fn not_followed() -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message("this process does not follow the record of the migration yet, as a store did not answer when it started")
        .with_hint("try again: it asks both stores every second")
        .with_outcome(Outcome::NotApplied)
}

pub(crate) fn no_record() -> Error {
    Error::new(ErrorKind::Unexpected, BACKEND)
        .with_message("the record of the migration was deleted: it is unknown which tombstones count")
        .with_hint("restart all processes of the migration, which write it again")
}
