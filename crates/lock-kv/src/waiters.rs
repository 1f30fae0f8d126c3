//! The waiters in a record: how many, for how long each lives after it has said so, and who is passed over.

use std::time::Duration;

use lock_core::BootInstant;

use crate::registers::About;

/// How many waiters stand in the record; others poll. All clients read it, and write it whole.
pub(crate) const MOST_WAITERS: usize = 128;
/// A waiter lives for so many round trips for each that waits, as it says three times in that that it lives: all of them take a third
/// of the changes that a store can make of a record.
const ROUND_TRIPS_OF_A_WAITER: u32 = 9;
/// And for so much for each: all of them write ten values a second at most, as some stores keep the old ones.
const SPAN_OF_A_WAITER: Duration = Duration::from_millis(300);
/// A waiter that has gone has its place for no longer.
const WAITER_LASTS_AT_MOST: Duration = Duration::from_secs(300);

/// How long the lock is kept for a granted waiter, and how long a waiter lives after its last beat, at least; and in polls.
const GRACE: Duration = Duration::from_millis(2_500);
const WAITER_LASTS: Duration = Duration::from_secs(5);
const GRACE_IN_POLLS: u32 = 20;
/// For the requests by which a waiter sees a grant and confirms it.
const GRACE_FOR_REQUESTS: Duration = Duration::from_millis(500);

/// For how long a waiter lives after it has said so, beside so many others, where a change takes so long.
pub(crate) fn lasts(round_trip: Duration, others: usize) -> Duration {
    let waiters = u32::try_from(others + 1).unwrap_or(u32::MAX);
    let span = (round_trip * ROUND_TRIPS_OF_A_WAITER).max(SPAN_OF_A_WAITER);
    span.saturating_mul(waiters).min(WAITER_LASTS_AT_MOST)
}

/// How long a waiter lives after its last beat, at least. It looks after a third of that, whatever it was told.
pub(crate) fn lasts_at_least(about: &About) -> Duration {
    WAITER_LASTS.max(about.poll * GRACE_IN_POLLS * 2)
}

/// As long as a waiter may need to see a grant, whose server has become silent.
pub(crate) fn grace(about: &About) -> Duration {
    let silent = lasts_at_least(about) / 3 + about.passes_over + GRACE_FOR_REQUESTS;
    GRACE.max(about.poll * GRACE_IN_POLLS).max(silent)
}

/// Whether a waiter is still there that this client counts dead at that time.
pub(crate) fn lives(dead_at: BootInstant, now: BootInstant) -> bool {
    now < dead_at
}

/// Whether it was to say that it lives, after a third of its time, and has not: others get the lock before it. A host that dies with many waiters
/// would hold the lock up for a grace period for each.
pub(crate) fn is_doubted(dead_at: BootInstant, lasts: Duration, now: BootInstant) -> bool {
    now >= dead_at - lasts / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lasts_until_a_waiter_has_passed_over_a_silent_server() {
        let mut about = About::new("test", Duration::from_millis(50));
        assert_eq!(grace(&about), GRACE);
        about.passes_over = Duration::from_millis(1_500);
        assert!(grace(&about) > lasts_at_least(&about) / 3 + about.passes_over);
    }
}
