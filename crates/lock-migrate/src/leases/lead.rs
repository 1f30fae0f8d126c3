//! How far tokens of the new store may be ahead of the clock of the old one.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, Token};

use crate::error::BACKEND;
use crate::rungs::time::{DAY, HOUR, micros, wall_clock};

/// The most that tokens of the new store may be ahead of the clock of the old one.
pub(crate) const LARGEST_LEAD: Duration = DAY;
/// By how much a raise of the tokens is ahead of the clock of the old store.
pub(crate) const RAISE_LEAD: Duration = HOUR;

/// Refuses a token of the new store that is too far ahead of this clock of the old one.
pub(crate) fn check_lead(token: Token, clock: u64) -> Result<()> {
    check_ahead(token, clock, LARGEST_LEAD)
}

/// The same, where the clock of this host leaves that open.
pub(crate) fn check_near(token: Token, clock: u64) -> Result<()> {
    if is_near(token, LARGEST_LEAD) { Ok(()) } else { check_lead(token, clock) }
}

/// Whether the clock of this host says that it is not worth asking that of the old store.
pub(crate) fn is_near(token: Token, largest: Duration) -> bool {
    token.get() <= micros(wall_clock()).saturating_add(micros(largest) / 2)
}

pub(crate) fn check_ahead(token: Token, clock: u64, largest: Duration) -> Result<()> {
    if token.get() <= clock.saturating_add(micros(largest)) {
        return Ok(());
    }
    let hours = largest.as_secs() / 3_600;
    Err(Error::new(ErrorKind::Exhausted, BACKEND)
        .with_message(format!(
            "the token {token} is more than {hours} h ahead of the old store's clock, {clock}"
        ))
        .with_hint(
            "set the clock right, or wait until it has caught up; until then, `polylock migrate set old` frees the locks that \
             have not moved, and those that have moved are not affected",
        ))
}
