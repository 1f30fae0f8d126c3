//! When a lock ends by the terms of its lease, although its store still has it.

use std::time::Duration;

use crate::process::time::validity::{LossReason, ValidityCell};
use crate::{BootInstant, Clock, LeasePolicy};

/// When a lock ends by the terms of its lease, although its store still has it: for backends whose locks last with a session.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # use std::time::Duration;
/// # use lock_core::{Clock, Expiry, LeasePolicy};
/// let hold = Duration::from_secs(60);
/// let mut policy = LeasePolicy::default();
/// policy.max_hold = Some(hold);
/// let expiry = Expiry::begin(&Clock::boot(), policy, Duration::from_secs(10));
/// assert!(expiry.expires() && expiry.cell().validity().remaining() <= hold);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Expiry {
    cell: ValidityCell,
    /// Whether it has a fixed ttl, which can be extended.
    is_fixed: bool,
    /// The end of `max_hold`, which no extension moves.
    hold_until: BootInstant,
}

impl Expiry {
    /// The expiry of a lock that is granted now. `default_ttl` counts where the policy names none.
    #[must_use]
    pub fn begin(clock: &Clock, policy: LeasePolicy, default_ttl: Duration) -> Self {
        let now = clock.now();
        let hold_until = policy.max_hold.map_or(BootInstant::NEVER, |hold| now + hold);
        let cell = ValidityCell::new(clock.clone(), BootInstant::NEVER);
        let expiry = Self { cell, is_fixed: !policy.renewed, hold_until };
        let ttl = policy.ttl.unwrap_or(default_ttl);
        expiry.set(if expiry.is_fixed { now + ttl } else { hold_until });
        expiry
    }

    /// Whether the lock ends by itself while its guard lives.
    #[must_use]
    pub fn expires(&self) -> bool {
        self.is_fixed || self.hold_until != BootInstant::NEVER
    }

    /// What ends with the lock, and ends it.
    #[must_use]
    pub const fn cell(&self) -> &ValidityCell {
        &self.cell
    }

    /// Makes a lock with a fixed time to live end by then, if that is earlier: before its store is asked for another time,
    /// as an earlier end holds whatever becomes of the request.
    pub fn shorten(&self, until: BootInstant) {
        if self.is_fixed {
            self.set(until.min(self.cell.validity().until()));
        }
    }

    /// Makes a lock with a fixed time to live end then, earlier or later, and not after `max_hold`. Returns whether the lock
    /// is still held.
    #[must_use]
    pub fn extend(&self, until: BootInstant) -> bool {
        if self.is_fixed { self.set(until) } else { self.cell.validity().is_valid() }
    }

    fn set(&self, until: BootInstant) -> bool {
        let is_max_hold = until >= self.hold_until;
        self.cell.end_with(if is_max_hold { LossReason::MaxHold } else { LossReason::DeadlinePassed });
        self.cell.set_until(until.min(self.hold_until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn begin(policy: LeasePolicy) -> (Clock, Expiry) {
        let clock = Clock::tokio();
        let expiry = Expiry::begin(&clock, policy, 10 * SECOND);
        (clock, expiry)
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lock_ends_with_max_hold_alone() {
        let (_, endless) = begin(LeasePolicy::default());
        assert!(!endless.expires() && endless.cell().validity().until() == BootInstant::NEVER);
        let (clock, expiry) = begin(LeasePolicy { max_hold: Some(5 * SECOND), ..LeasePolicy::default() });
        expiry.shorten(clock.now() + SECOND);
        assert!(expiry.extend(clock.now() + 60 * SECOND));
        assert_eq!(expiry.cell().validity().remaining(), 5 * SECOND);
        assert_eq!(expiry.cell().validity().lost().await, LossReason::MaxHold);
        assert!(!expiry.extend(clock.now() + SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_lock_ends_when_it_was_extended_to_and_not_after_max_hold() {
        let policy = LeasePolicy { ttl: None, renewed: false, max_hold: Some(30 * SECOND) };
        let (clock, expiry) = begin(policy);
        let left = || expiry.cell().validity().remaining();
        assert_eq!(left(), 10 * SECOND, "the default");
        expiry.shorten(clock.now() + 20 * SECOND);
        assert_eq!(left(), 10 * SECOND);
        assert!(expiry.extend(clock.now() + 20 * SECOND) && left() == 20 * SECOND);
        assert!(expiry.extend(clock.now() + 60 * SECOND) && left() == 30 * SECOND);
        expiry.shorten(clock.now() + SECOND);
        assert_eq!(expiry.cell().validity().lost().await, LossReason::DeadlinePassed);
    }
}
