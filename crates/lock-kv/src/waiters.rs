//! The waiters in a record: how many, for how long each lives after it has said so, who is passed over, and what one has to write.

use std::time::Duration;

use lock_core::BootInstant;
use lock_core::record::{self, Now, Record};

use crate::registers::About;
use crate::stored::{Moment, Party};

/// How many waiters stand in the record; others poll. All clients read it, and write it whole.
const MOST_WAITERS: usize = 128;
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

/// What came of a request for a lock.
pub(crate) struct Asked {
    pub(crate) answer: record::Answer,
    /// When the waiter has to say again that it lives.
    pub(crate) beat: BootInstant,
    /// Whether it was in the queue before.
    pub(crate) was_queued: bool,
}

/// Asks for a lock, with the least that has to be written: a waiter stays as it is until its beat is due, and while it is patient.
pub(crate) fn ask_for(
    record: &mut Record<Party>,
    now: &mut Moment,
    mut ask: record::Ask<Party>,
    is_patient: bool,
    waiter_lasts: impl Fn(usize) -> Duration,
) -> Asked {
    let (owner, ttl) = (ask.owner, ask.ttl);
    if record.queue().len() >= MOST_WAITERS {
        // Those that have gone take up the room of others.
        let alive = record.queue().iter().filter(|waiter| now.lives(waiter)).cloned();
        *record = Record::of(record.last(), record.holders().iter().cloned(), alive);
    }
    let lasts = waiter_lasts(record.queue().len());
    let (mut beat, mut is_due, mut was_queued) = (now.time() + lasts / 3, true, false);
    match record.queue().iter().find(|waiter| waiter.owner == owner) {
        Some(waiter) if now.lives(waiter) => {
            was_queued = true;
            ask.party = waiter.party.clone();
            if now.time() < ask.party.next_beat() {
                (beat, is_due) = (ask.party.next_beat(), false);
            }
            is_due &= !is_patient;
        }
        _ if is_patient => ask.waits = None,
        Some(_) => {}
        None if record.queue().len() >= MOST_WAITERS => ask.waits = None,
        None => {}
    }
    let (answer, _) = record.ask(now, ask);
    match answer {
        record::Answer::Granted(_) => now.hear(owner, ttl),
        record::Answer::Busy { .. } if is_due => now.hear(owner, lasts),
        record::Answer::Busy { .. } => {}
    }
    Asked { answer, beat, was_queued }
}

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

/// Whether a waiter is still there, as far as this client can tell.
pub(crate) fn lives(waiter: &Party, now: BootInstant) -> bool {
    now < waiter.dead_at()
}

/// Whether it was to say that it lives, after a third of its time, and has not: others get the lock before it. A host that dies with many waiters
/// would hold the lock up for a grace period for each.
pub(crate) fn is_doubted(waiter: &Party, now: BootInstant) -> bool {
    now >= waiter.dead_at() - waiter.lasts() / 2
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
