//! What a client knows of the clock of a server.
//!
//! Tokens that a client proposes must not be ahead of the server's clock: a server that has lost the last token continues
//! from its clock. So what is kept is a lower bound: the server's time in an answer, which was read before the answer
//! arrived, plus what has passed since by the client's clock, less than that by the drift of both.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::BootInstant;

use lock_core::drift::DRIFT;

/// A lower bound of the clock of the server that a connection leads to.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    sample: Mutex<Option<Sample>>,
    /// The bound was too old for somebody.
    is_wanted: AtomicBool,
}

/// An answer to TIME.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The connection.
    generation: u64,
    /// The server's clock, in microseconds since 1970.
    micros: u64,
    /// When the answer had arrived.
    at: BootInstant,
    /// When somebody was told that it is old, and asks again.
    asked: Option<BootInstant>,
}

/// The lower bound at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerTime {
    /// In microseconds since 1970.
    pub(crate) micros: u64,
    /// The server may have granted a larger token, and have lost it: a script has to mint.
    pub(crate) is_too_old: bool,
}

impl ServerClock {
    /// The lower bound now, of the server behind this connection.
    pub(crate) fn now(&self, generation: u64, now: BootInstant) -> Option<ServerTime> {
        let sample = (*self.lock()).filter(|sample| sample.generation == generation)?;
        let age = now.saturating_duration_since(sample.at);
        Some(ServerTime { micros: sample.bound(now), is_too_old: age > USABLE })
    }

    /// Has the next request ask the server again.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Whether the caller, who is about to send something, has to ask the server again. One of all callers is told.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed) && self.is_wanted.swap(false, Ordering::Relaxed)
    }

    /// Whether the caller, who is about to send something, should ask the server again: the bound falls behind by the drift. One
    /// of all callers is told.
    pub(crate) fn is_to_be_asked(&self, generation: u64, now: BootInstant) -> bool {
        let is_old = |since: BootInstant| now.saturating_duration_since(since) > FRESH;
        let mut sample = self.lock();
        let Some(sample) = sample.as_mut().filter(|sample| sample.generation == generation) else {
            return false;
        };
        // Again if there was no answer.
        let asks = is_old(sample.at) && sample.asked.is_none_or(is_old);
        if asks {
            sample.asked = Some(now);
        }
        asks
    }

    /// Notes an answer to TIME that has just arrived. Of two bounds, the larger one counts, unless that is outdated: the
    /// clock may have been set back.
    pub(crate) fn note(&self, generation: u64, micros: u64, now: BootInstant) {
        let new = Sample { generation, micros, at: now, asked: None };
        let mut sample = self.lock();
        let old_counts = sample.is_some_and(|old| {
            let age = now.saturating_duration_since(old.at);
            let is_same = old.generation == generation && age < OUTDATED && old.bound(now) > micros;
            // The answer may have come over an earlier connection, after the first one over the next.
            is_same || old.generation > generation
        });
        if !old_counts {
            *sample = Some(new);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Sample>> {
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sample {
    fn bound(&self, now: BootInstant) -> u64 {
        let passed = now.saturating_duration_since(self.at).as_micros();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.micros.saturating_add(passed - passed / u64::from(DRIFT))
    }
}

/// After this time the server is asked again: the bound is half a millisecond behind by then.
const FRESH: Duration = Duration::from_millis(50);
const OUTDATED: Duration = Duration::from_secs(5);
/// The bound is 10 milliseconds behind by then. Tokens that are proposed fall behind by no more than that when the server has lost the
/// last one.
const USABLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::drift::valid_until;

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(millis))
    }

    #[test]
    fn the_bound_falls_behind_and_never_gets_ahead() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(1, at(0)), None);
        clock.note(1, 5_000_000, at(100));
        assert_eq!(clock.now(1, at(100)), Some(ServerTime { micros: 5_000_000, is_too_old: false }));
        assert_eq!(clock.now(1, at(2_100)), Some(ServerTime { micros: 6_980_000, is_too_old: true }));
        assert_eq!(clock.now(1, at(50)), Some(ServerTime { micros: 5_000_000, is_too_old: false }));
        assert_eq!(clock.now(2, at(100)), None, "another connection, perhaps to another server");
        let is_too_old = |millis: u64| clock.now(1, at(100 + millis)).unwrap().is_too_old;
        assert!(!is_too_old(1_000) && is_too_old(1_001));
    }

    /// After the loss of the last token the clock alone keeps the order.
    #[test]
    fn no_usable_bound_is_far_behind() {
        let clock = ServerClock::default();
        clock.note(1, 0, at(0));
        for millis in [1, 50, 999, 1_000, 1_001, 60_000, 3_600_000] {
            let time = clock.now(1, at(millis)).unwrap();
            let behind = millis * 1_000 - time.micros;
            assert!(time.is_too_old || behind <= 10_000, "{behind} us after {millis} ms");
        }
    }

    #[test]
    fn a_bound_that_is_wanted_is_asked_for_once() {
        let clock = ServerClock::default();
        assert!(!clock.is_wanted());
        clock.want();
        assert_eq!([(); 2].map(|()| clock.is_wanted()), [true, false]);
    }

    #[test]
    fn of_many_that_find_the_bound_old_one_asks() {
        let clock = ServerClock::default();
        clock.note(1, 0, at(0));
        let asks = |millis| clock.is_to_be_asked(1, at(millis));
        assert_eq!([50, 51, 52, 101, 102, 103].map(asks), [false, true, false, false, true, false]);
        clock.note(1, 104_000, at(104));
        assert_eq!([154, 155, 156].map(asks), [false, true, false]);
    }

    /// As long as the clocks differ by no more than a lease allows for.
    #[test]
    fn the_bound_stays_behind_a_server_that_is_as_slow_as_leases_allow() {
        for passed in [1, 50, 5_000, 3_600_000] {
            let (clock, ttl) = (ServerClock::default(), Duration::from_millis(passed));
            clock.note(1, 0, at(0));
            let server = valid_until(at(0), ttl) + Duration::from_millis(2);
            let server = u64::try_from(server.since_boot().as_micros()).unwrap();
            assert!(clock.now(1, at(passed)).unwrap().micros <= server, "after {passed} ms");
        }
    }

    #[test]
    fn a_slower_answer_does_not_lower_it_but_a_clock_that_was_set_back_does() {
        let clock = ServerClock::default();
        clock.note(1, 5_000_000, at(0));
        clock.note(1, 5_500_000, at(1_000));
        assert_eq!(clock.now(1, at(1_000)).unwrap().micros, 5_990_000);
        clock.note(1, 7_000_000, at(2_000));
        assert_eq!(clock.now(1, at(2_000)).unwrap().micros, 7_000_000);
        clock.note(1, 3_000_000, at(4_000));
        assert_eq!(clock.now(1, at(4_000)).unwrap().micros, 8_980_000);
        clock.note(1, 3_000_000, at(7_000));
        assert_eq!(clock.now(1, at(7_000)).unwrap().micros, 3_000_000);
        clock.note(2, 1_000_000, at(7_000));
        assert_eq!(clock.now(2, at(7_000)).unwrap().micros, 1_000_000);
    }

    #[test]
    fn a_late_answer_over_an_earlier_connection_says_nothing_of_the_present_one() {
        let clock = ServerClock::default();
        clock.note(2, 5_000_000, at(0));
        clock.note(1, 9_000_000, at(1));
        assert_eq!(clock.now(2, at(1)).map(|time| time.micros), Some(5_000_990));
    }
}
