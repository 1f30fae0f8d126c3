//! A release whose outcome is not known yet.

use std::time::Duration;

use crate::{BootInstant, Error, GuardState, LossReason, Outcome, Released, Validity};

/// The release of a lease, from its first request until its outcome is known.
#[derive(Debug, Default)]
pub(super) struct PendingRelease(Option<SentRelease>);

/// A request that releases a lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRelease {
    was_valid: bool,
    /// By then the lease has expired.
    over: BootInstant,
    /// Whether an earlier request may have released the lock.
    pub(super) maybe_done: bool,
}

impl PendingRelease {
    /// Notes that a request is about to be sent. The store keeps the lock for `lasting` from the first one on, at most.
    ///
    /// # Errors
    ///
    /// The outcome, if it is known without a request.
    pub(super) fn begin(
        &mut self,
        validity: &Validity,
        now: BootInstant,
        lasting: Duration,
    ) -> Result<SentRelease, Released> {
        let state = validity.state();
        if state == GuardState::Lost(LossReason::Removed) {
            return Err(Released::AlreadyLost);
        }
        let was_valid = !matches!(state, GuardState::Lost(_));
        let first = SentRelease { was_valid, over: now + lasting, maybe_done: false };
        let sent = *self.0.get_or_insert(first);
        if sent.is_over(now) {
            return Err(sent.in_time());
        }
        self.0 = Some(SentRelease { maybe_done: true, ..sent });
        Ok(sent)
    }

    /// Whether a request may have released the lock.
    #[must_use]
    pub(super) const fn is_sent(&self) -> bool {
        self.0.is_some()
    }

    /// Notes that this request was not applied.
    pub(super) fn not_applied(&mut self, sent: SentRelease) {
        self.0 = Some(sent);
    }
}

impl SentRelease {
    /// Whether the lease has expired by now: nobody waits for an answer any more.
    #[must_use]
    pub(super) fn is_over(&self, now: BootInstant) -> bool {
        now >= self.over
    }

    /// The outcome of a request that found the lock, or did not.
    #[must_use]
    pub(super) fn outcome(self, found: bool) -> Released {
        if found || self.maybe_done { self.in_time() } else { Released::AlreadyLost }
    }

    /// The error of a request, while an earlier one may have released the lock.
    #[must_use]
    pub(super) fn doubted(self, error: Error) -> Error {
        match error.outcome() {
            Outcome::NotApplied if self.maybe_done => error.with_outcome(Outcome::Unknown),
            _ => error,
        }
    }

    /// The outcome of a request that reached the store before the lease expired.
    #[must_use]
    pub(super) fn in_time(self) -> Released {
        if self.was_valid { Released::Released } else { Released::AlreadyLost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, ValidityCell};

    #[test]
    fn a_request_that_finds_nothing_is_known_only_if_it_is_the_first() {
        let (clock, ttl) = (Clock::boot(), Duration::from_secs(60));
        let now = clock.now();
        let cell = ValidityCell::new(clock, now + ttl);
        let validity = cell.validity();
        let mut pending = PendingRelease::default();
        let first = pending.begin(&validity, now, ttl).unwrap();
        assert_eq!((first.outcome(false), first.outcome(true)), (Released::AlreadyLost, Released::Released));
        let second = pending.begin(&validity, now, ttl).unwrap();
        assert_eq!(second.outcome(false), Released::Released);
        assert_eq!(pending.begin(&validity, now + ttl, ttl).unwrap_err(), Released::Released);
        pending.not_applied(first);
        let third = pending.begin(&validity, now, ttl).unwrap();
        assert_eq!(third.outcome(false), Released::AlreadyLost);
        cell.lose(LossReason::Removed);
        assert_eq!(pending.begin(&validity, now, ttl).unwrap_err(), Released::AlreadyLost);
    }
}
