//! Extensions without an answer: a master may still execute them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The extensions of one lease that each master may still execute, at any time: those whose answer is awaited, and those whose
/// connection was lost.
///
/// A master may execute those that were sent over two connections in any order, and so one that shortens the lease after a longer
/// one that it has confirmed. An extension that is confirmed counts for the shortest ttl of all of those that it overlapped with:
/// each of them is at least as long from its execution on. The others leave a longer lease alone.
#[derive(Debug, Default)]
pub(crate) struct Unanswered(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    awaited: Vec<Awaited>,
    /// For each master that has lost some that shorten the lease, the shortest of them.
    lost: Vec<(usize, Duration)>,
}

/// An extension whose answer is awaited.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    id: u64,
    master: usize,
    ttl: Duration,
    /// Whether it shortens the lease.
    shortens: bool,
    /// The shortest ttl of all that it overlapped with, and that do.
    limit: Duration,
}

impl Unanswered {
    /// Notes an extension that is about to be sent, and returns its number.
    pub(crate) fn sent(&self, master: usize, ttl: Duration, shortens: bool) -> u64 {
        let mut state = self.state();
        state.last += 1;
        let (id, mut limit) = (state.last, state.lost_by(master).unwrap_or(ttl).min(ttl));
        for other in state.awaited.iter_mut().filter(|other| other.master == master) {
            if shortens {
                other.limit = other.limit.min(ttl);
            }
            if other.shortens {
                limit = limit.min(other.ttl);
            }
        }
        state.awaited.push(Awaited { id, master, ttl, shortens, limit });
        id
    }

    /// Notes that the master has executed it, or never will. Returns for how long it counts if it has.
    pub(crate) fn answered(&self, id: u64) -> Duration {
        self.state().take(id).map_or(Duration::ZERO, |request| request.limit)
    }

    /// Notes that no answer will come.
    pub(crate) fn lost(&self, id: u64) {
        let mut state = self.state();
        let Some(Awaited { master, ttl, shortens: true, .. }) = state.take(id) else { return };
        let shortest = state.lost_by(master).map_or(ttl, |lost| lost.min(ttl));
        state.lost.retain(|(other, _)| *other != master);
        state.lost.push((master, shortest));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lost_by(&self, master: usize) -> Option<Duration> {
        self.lost.iter().find(|(other, _)| *other == master).map(|(_, ttl)| *ttl)
    }

    fn take(&mut self, id: u64) -> Option<Awaited> {
        let at = self.awaited.iter().position(|request| request.id == id)?;
        Some(self.awaited.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(2);

    #[test]
    fn an_extension_counts_for_the_shortest_that_it_overlapped_with() {
        let unanswered = Unanswered::default();
        let [short, long, other] =
            [(0, SHORT), (0, LONG), (1, LONG)].map(|(master, ttl)| unanswered.sent(master, ttl, true));
        // Whichever is answered first, and also one that is sent later.
        assert_eq!(unanswered.answered(short), SHORT);
        let later = unanswered.sent(1, SHORT, true);
        assert_eq!([long, other, later].map(|id| unanswered.answered(id)), [SHORT; 3]);
        let alone = unanswered.sent(0, LONG, true);
        assert_eq!(unanswered.answered(alone), LONG);
    }

    #[test]
    fn what_was_lost_limits_all_that_come_later_at_that_master() {
        let unanswered = Unanswered::default();
        for ttl in [LONG, SHORT, LONG] {
            let id = unanswered.sent(1, ttl, true);
            unanswered.lost(id);
        }
        let ids = [0, 1].map(|master| unanswered.sent(master, LONG, true));
        assert_eq!(ids.map(|id| unanswered.answered(id)), [LONG, SHORT]);
        let state = unanswered.state();
        assert_eq!((state.lost.len(), state.awaited.len()), (1, 0));
    }

    #[test]
    fn what_does_not_shorten_the_lease_limits_nothing() {
        let unanswered = Unanswered::default();
        let lost = unanswered.sent(0, SHORT, false);
        let [short, long] =
            [(SHORT, false), (LONG, false)].map(|(ttl, shortens)| unanswered.sent(0, ttl, shortens));
        unanswered.lost(lost);
        assert_eq!([short, long].map(|id| unanswered.answered(id)), [SHORT, LONG]);
        let (long, shorter) = (unanswered.sent(0, LONG, false), unanswered.sent(0, SHORT, true));
        unanswered.lost(shorter);
        assert_eq!(unanswered.answered(long), SHORT);
        let later = unanswered.sent(0, LONG, false);
        assert_eq!(unanswered.answered(later), SHORT);
    }
}
