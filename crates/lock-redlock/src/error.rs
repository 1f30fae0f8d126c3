//! The errors of this backend.

use std::time::Duration;

use lock_core::{Capabilities, Error, ErrorKind, LeaseKind, Outcome, Result, Token};

use crate::voting::quorum::quorum;

/// The name of this backend in errors.
pub(crate) const BACKEND: &str = "redlock";
/// The shortest ttl: below it, the drift margin and the round trips use up the lease.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// How far ahead of the clock a floor of tokens may be. Masters keep the last token for a week after its last use; clocks may
/// differ by the rest.
const MOST_AHEAD: Duration = Duration::from_secs(6 * 86_400);
const CHECK_MASTERS: &str = "check that the masters run";

/// Rejects a ttl that is too short, or longer than `longest_ttl`.
pub(crate) fn check_ttl(ttl: Duration, longest_ttl: Duration) -> Result<()> {
    Capabilities::new(BACKEND, LeaseKind::ttl(ttl, MIN_TTL)).check_ttl(ttl, MIN_TTL)?;
    if ttl <= longest_ttl {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!(
            "a ttl of {ttl:?} is longer than longest_ttl ({longest_ttl:?}): a restarted master would vote before the lock has expired"
        ))
        .with_hint("raise longest_ttl in the URL of all clients (?longest_ttl=...)"))
}

/// Rejects a floor of tokens that the masters would forget before the clocks pass it.
pub(crate) fn check_floor(floor: Token, now: Duration) -> Result<()> {
    let ahead = Duration::from_micros(floor.get()).saturating_sub(now);
    if ahead <= MOST_AHEAD {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, BACKEND)
        .with_message(format!(
            "the tokens cannot be raised to {floor}: that is {} days ahead of the clock, and masters keep the last token of \
             an idle lock for a week",
            ahead.as_secs() / 86_400
        ))
        .with_hint("raise them by less than six days, or use another lock name"))
}

/// The error for a vote without a quorum, with the reason of each master that did not agree.
pub(crate) fn no_quorum(masters: usize, votes: usize, failed: impl IntoIterator<Item = Error>) -> Error {
    let failed: Vec<_> = failed.into_iter().collect();
    let (down, refused): (Vec<_>, Vec<_>) =
        failed.iter().partition(|error| error.kind() == ErrorKind::Unavailable);
    // If only a minority refuses, there is a quorum once the others are back.
    let rules_it_out = refused.len() > masters - quorum(masters);
    let kind = refused.last().filter(|_| rules_it_out).map_or(ErrorKind::Unavailable, |error| error.kind());
    let lasting = failed.iter().filter(|error| !error.can_pass()).count();
    let reasons: String = failed.iter().map(|error| format!("; {}", error.message())).collect();
    let error = Error::new(kind, BACKEND)
        .with_message(format!(
            "only {votes} of {masters} masters agreed, {} are needed{reasons}",
            quorum(masters)
        ))
        .with_code("no_quorum")
        .with_can_pass(lasting <= masters - quorum(masters))
        .with_outcome(Outcome::Unknown);
    // A hint about a wrong password is more useful than one about a host that is down.
    match refused.last().or_else(|| down.last()) {
        Some(last) => error.with_hint(last.hint().unwrap_or(CHECK_MASTERS)).caused_by((*last).clone()),
        None => error.with_hint(CHECK_MASTERS),
    }
}

pub(crate) fn too_late(ttl: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!(
            "the masters granted the lock, but after their answers less than a tenth of the ttl of {ttl:?} was left"
        ))
        .with_hint("use a longer ttl; the lock is released")
        .with_outcome(Outcome::Applied)
}

/// Too few masters answered a release.
pub(crate) fn unconfirmed(confirmed: usize, masters: usize) -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message(format!("only {confirmed} of {masters} masters confirmed the release in time"))
        .with_hint("the release continues in the background")
        .with_outcome(Outcome::Unknown)
}

/// The error for two addresses that lead to one server.
pub(crate) fn same_server(one: &str, other: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, BACKEND)
        .with_message(format!("the masters {other} and {one} are one server, which would vote twice"))
        .with_hint("name independent masters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_distinguished_from_masters_that_refuse() {
        let said = |kind: &ErrorKind| Error::new(*kind, BACKEND).with_message(format!("{kind:?}"));
        let of = |kinds: &[ErrorKind]| no_quorum(5, 2, kinds.iter().map(said));
        let (denied, gone) = (ErrorKind::Denied, ErrorKind::Unavailable);
        assert_eq!(of(&[]).kind(), gone);
        assert_eq!(of(&[gone, gone, gone]).kind(), gone);
        assert_eq!(of(&[denied, gone, denied]).kind(), gone);
        assert_eq!(of(&[denied, gone, denied, denied]).kind(), denied);
        assert!(of(&[denied, gone, denied, denied]).can_pass());
        let wrong = ErrorKind::InvalidConfig;
        assert!(of(&[wrong, denied, wrong]).can_pass(), "three masters may agree later");
        assert!(!of(&[wrong, denied, wrong, wrong]).can_pass());
        let text = of(&[denied, gone, gone]).to_string();
        assert!(text.contains("Denied"), "a minority is reported too: {text}");
    }
}
