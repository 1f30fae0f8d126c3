//! How a lock stands in its key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{BootInstant, Finding, FindingLevel};

/// What is written into the key of a lock. All who share a lock need the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisRecipe {
    /// An identity of its own for each acquisition, in a key that ends by itself: `SET key value NX PX ttl`.
    #[default]
    SetNxPx,
    /// The time at which the lock ends, in a key that does not end by itself: `SETNX key time`, and once
    /// that time is over `GETSET key time`. For fleets that run it already, and not for anything else.
    ///
    /// **Two may hold the lock at once.** The clocks of the clients decide when it is over, so that one
    /// whose clock is ahead takes it from a holder that still believes. We believe for less than we write
    /// and take over later than we read, by [`clock_skew`](crate::RedisConfig::clock_skew) each: so clocks
    /// that differ by no more are harmless to us and to those who share a lock with us, though not to two
    /// clients of other make. A clock that is stepped forward while a lock is held is noticed when the
    /// lock is next renewed.
    ///
    /// The value does not say whose it is. Ours are told apart by the key of the token, which names the
    /// acquisition and what it wrote last. A client of other make that wrote, to the millisecond, what we
    /// wrote last, after our lock was removed under us, is taken for us: then we believe with it, and our
    /// release is its release. And one that asks for a lock that is over, and loses, overwrites the time
    /// of the winner: if that is us, we take the lock for lost with the next renewal, and leave it to end.
    ///
    /// Waiters ask again and again; there is no queue, no sharing and no handing over within a process. A
    /// holder that dies leaves the key behind, as it does with every client of this recipe.
    SetnxTimestamp,
}

/// What the times of [`RedisRecipe::SetnxTimestamp`] are counted in. A value of another unit is never taken for
/// a time that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecipeUnit {
    /// Milliseconds since 1970.
    #[default]
    Millis,
    /// Seconds since 1970. We write whole ones, and read those with a fraction too.
    Seconds,
}

/// Where the time since 1970 is taken from.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// A clock that shows what `now` says, for tests.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time since 1970.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.0)().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

impl Default for WallClock {
    /// The machine's clock.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({:?})", self.now())
    }
}

/// When a request leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: BootInstant,
    /// Since 1970; not looked at where the recipe writes no times.
    pub(crate) wall: Duration,
}

/// The times of [`RedisRecipe::SetnxTimestamp`].
#[derive(Debug)]
pub(crate) struct Timestamps {
    unit: RecipeUnit,
    skew: Duration,
    clock: WallClock,
    warned: AtomicBool,
}

impl Timestamps {
    pub(crate) fn new(unit: RecipeUnit, skew: Duration, clock: WallClock) -> Self {
        Self { unit, skew, clock, warned: AtomicBool::new(false) }
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What is written by one who believes for `ttl`: it is over for others only when it is over for us, by
    /// any clock that differs by no more than the skew. Older fleets add one, and so do we.
    pub(crate) fn value(&self, sent: Moment, ttl: Duration) -> u128 {
        let ends = sent.wall + ttl + self.skew;
        match self.unit {
            RecipeUnit::Millis => ends.as_millis() + 1,
            RecipeUnit::Seconds => u128::from(ends.as_secs()) + 1,
        }
    }

    /// In ms since 1970: a lock that ends before is over, by any clock that differs by no more than the skew.
    pub(crate) fn over_before(&self) -> u128 {
        self.now().saturating_sub(self.skew).as_millis()
    }

    /// In ms.
    pub(crate) fn unit(&self) -> u32 {
        match self.unit {
            RecipeUnit::Millis => 1,
            RecipeUnit::Seconds => 1000,
        }
    }

    /// How long one may still believe who wrote a value for `ttl`. A clock that was stepped forward since has
    /// used it up.
    pub(crate) fn left(&self, sent: Moment, ttl: Duration) -> Duration {
        (sent.wall + ttl).saturating_sub(self.now())
    }

    /// Warns once if the server's clock differs from ours by more than is assumed of any two.
    pub(crate) fn compare(&self, sent: Moment, server: Duration) {
        let (ahead, behind) = (sent.wall.saturating_sub(server), server.saturating_sub(self.now()));
        if ahead.max(behind) > self.skew && !self.warned.swap(true, Ordering::Relaxed) {
            let which = if ahead > behind { "ahead of" } else { "behind" };
            tracing::warn!(
                by = ?ahead.max(behind),
                clock_skew = ?self.skew,
                "the clock of this host is {which} the server's by more than clock_skew: two may hold a lock of the \
                 recipe setnx-timestamp at once; check what keeps the clocks (chrony, ntpd) of all hosts"
            );
        }
    }
}

/// What those who use the recipe have to know.
pub(crate) fn danger() -> Finding {
    Finding::new(
        FindingLevel::Warning,
        "",
        "recipe=setnx-timestamp is for fleets that run it already: two may hold a lock at once when the clocks of \
             their hosts differ",
        "once no other client is left, go over to recipe=set-nx-px",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_millis(1_700_000_000_400);
    const TTL: Duration = Duration::from_secs(10);

    fn timestamps(unit: RecipeUnit) -> (Timestamps, Moment) {
        let clock = WallClock::new(|| UNIX_EPOCH + NOW);
        let sent = Moment { at: BootInstant::from_boot(TTL), wall: NOW };
        (Timestamps::new(unit, Duration::from_secs(1), clock), sent)
    }

    #[test]
    fn values_are_written_as_older_fleets_write_them() {
        let (millis, sent) = timestamps(RecipeUnit::Millis);
        assert_eq!(millis.value(sent, TTL), 1_700_000_011_401);
        let (seconds, sent) = timestamps(RecipeUnit::Seconds);
        assert_eq!(seconds.value(sent, TTL), 1_700_000_012);
    }

    #[test]
    fn the_skew_counts_on_both_sides() {
        for unit in [RecipeUnit::Millis, RecipeUnit::Seconds] {
            let (timestamps, sent) = timestamps(unit);
            assert_eq!(timestamps.over_before(), 1_699_999_999_400);
            assert_eq!(timestamps.left(sent, TTL), TTL);
            let ends = timestamps.value(sent, TTL) * u128::from(timestamps.unit());
            assert!((sent.wall + timestamps.left(sent, TTL) + timestamps.skew).as_millis() < ends);
        }
    }

    #[test]
    fn a_step_forward_uses_a_lease_up_and_a_step_back_prolongs_nothing_that_is_counted() {
        let (timestamps, mut sent) = timestamps(RecipeUnit::Millis);
        sent.wall -= Duration::from_secs(4);
        assert_eq!(timestamps.left(sent, TTL), Duration::from_secs(6));
        sent.wall -= Duration::from_secs(60);
        assert_eq!(timestamps.left(sent, TTL), Duration::ZERO);
    }
}
