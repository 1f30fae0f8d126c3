//! Until when the vote of each master for one acquisition counts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::BootInstant;
use lock_core::drift::valid_until;

use crate::voting::quorum::OfEach;

/// Until when the vote of each master for one acquisition counts. Until then no other one can count a vote of that master, even
/// if it restarts.
#[derive(Debug)]
pub(crate) struct LiveVotes(Mutex<State>);

#[derive(Debug)]
struct State {
    until: OfEach<BootInstant>,
    /// When the last request was sent that may have shortened them.
    shortened: BootInstant,
}

impl LiveVotes {
    /// No votes.
    pub(crate) fn new(masters: usize) -> Self {
        let never = BootInstant::from_boot(Duration::ZERO);
        Self(Mutex::new(State { until: OfEach::from_elem(never, masters), shortened: never }))
    }

    /// Notes a vote that counts: the answer to a claim or an extension that was sent at this time.
    pub(crate) fn note(&self, master: usize, sent: BootInstant, ttl: Duration) {
        let mut state = self.state();
        if sent >= state.shortened {
            let until = &mut state.until[master];
            *until = valid_until(sent, ttl).max(*until);
        }
    }

    /// Notes an extension that is about to be sent. With a shorter ttl than before, it shortens the votes: at any time from now
    /// on, and even where no answer comes.
    pub(crate) fn will_extend(&self, sent: BootInstant, ttl: Duration) {
        let (mut state, end) = (self.state(), valid_until(sent, ttl));
        if state.until.iter().any(|until| *until > end) {
            state.until.iter_mut().for_each(|until| *until = end.min(*until));
            state.shortened = sent;
        }
    }

    /// Whether the vote of a master counts at this time.
    pub(crate) fn has(&self, master: usize, now: BootInstant) -> bool {
        now < self.state().until[master]
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn a_vote_counts_from_its_request_less_the_drift_margin() {
        let votes = LiveVotes::new(3);
        votes.note(1, at(5), TTL);
        votes.note(1, at(4), TTL);
        assert_eq!([0, 1, 2].map(|master| votes.has(master, at(14))), [false, true, false]);
        assert!(!votes.has(1, valid_until(at(5), TTL)));
    }

    #[test]
    fn a_shorter_extension_shortens_votes_also_those_that_are_still_to_come() {
        let votes = LiveVotes::new(2);
        votes.note(0, at(1), TTL);
        votes.will_extend(at(2), TTL / 2);
        votes.note(0, at(1), TTL);
        votes.note(1, at(1), TTL);
        assert!(votes.has(0, at(6)) && !votes.has(0, at(7)) && !votes.has(1, at(2)));
        votes.will_extend(at(3), TTL);
        votes.note(1, at(3), TTL);
        assert!(votes.has(1, at(12)) && !votes.has(0, at(7)));
    }
}
