//! Extensions without an answer: a master may still execute them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The extensions of one lease that each master may still execute, at any time: those whose answer is awaited, and those whose
/// connection was lost. One that is shorter than a later one undoes it.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<Vec<Request>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    master: usize,
    ttl: Duration,
    is_lost: bool,
}

impl Unanswered {
    /// Notes an extension that is about to be sent.
    pub(crate) fn sent(&self, master: usize, ttl: Duration) {
        self.requests().push(Request { master, ttl, is_lost: false });
    }

    /// Notes that the master has executed it, or never will.
    pub(crate) fn answered(&self, master: usize, ttl: Duration) {
        let (mut requests, request) = (self.requests(), Request { master, ttl, is_lost: false });
        if let Some(at) = requests.iter().position(|other| *other == request) {
            requests.swap_remove(at);
        }
    }

    /// Notes that no answer will come. Of several the shortest tells all.
    pub(crate) fn lost(&self, master: usize, ttl: Duration) {
        self.answered(master, ttl);
        let mut requests = self.requests();
        let of_master = |other: &Request| other.is_lost && other.master == master;
        let shortest = requests.iter().filter(|other| of_master(other)).map(|other| other.ttl).min();
        requests.retain(|other| !of_master(other));
        let ttl = shortest.map_or(ttl, |shortest| shortest.min(ttl));
        requests.push(Request { master, ttl, is_lost: true });
    }

    /// For how long an extension by this ttl counts, which the master has confirmed: one that it executes later is at least as
    /// long from then on.
    pub(crate) fn limit(&self, master: usize, ttl: Duration) -> Duration {
        let requests = self.requests();
        let of_master = requests.iter().filter(|other| other.master == master);
        of_master.map(|other| other.ttl).min().unwrap_or(ttl).min(ttl)
    }

    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(2);

    #[test]
    fn only_a_shorter_one_without_an_answer_limits_a_vote() {
        let unanswered = Unanswered::default();
        let limits = |ttl| [0, 1].map(|master| unanswered.limit(master, ttl));
        unanswered.sent(0, SHORT);
        assert_eq!((limits(LONG), limits(SHORT)), ([SHORT, LONG], [SHORT; 2]));
        unanswered.answered(0, SHORT);
        assert_eq!(limits(LONG), [LONG; 2]);
        for ttl in [SHORT, LONG, SHORT] {
            unanswered.sent(1, ttl);
            unanswered.lost(1, ttl);
        }
        unanswered.sent(1, LONG);
        unanswered.answered(1, LONG);
        assert_eq!((limits(LONG), limits(SHORT)), ([LONG, SHORT], [SHORT; 2]));
        assert_eq!(unanswered.requests().len(), 1);
    }
}
