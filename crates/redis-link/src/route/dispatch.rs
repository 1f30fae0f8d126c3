//! What becomes of a request on its way to a connection: it waits, is written, or is withdrawn before that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{BootInstant, Clock};
use tokio::time::Instant;

/// Whether a request was written to a connection, and when. What was not written is certainly not applied.
///
/// It serves for requests that are sent one after the other, as when a script follows plain commands.
#[derive(Debug)]
pub struct Dispatch {
    clock: Clock,
    /// Whether it goes before requests that are not.
    pub(crate) is_urgent: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the present request.
    request: u64,
    phase: Phase,
    /// When the first request was written.
    first: Option<Written>,
    is_withdrawn: bool,
}

/// The phase of the present request.
#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Waiting,
    Written(Instant),
    GivenUp,
}

/// When a request was written, at the earliest.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// By the timers of the runtime.
    pub at: Instant,
    /// By the clock of the leases.
    pub on_clock: BootInstant,
}

impl Dispatch {
    /// Of requests whose leases count by this clock.
    #[must_use]
    pub fn new(clock: &Clock) -> Arc<Self> {
        Arc::new(Self { clock: clock.clone(), is_urgent: false, state: Mutex::default() })
    }

    /// Of requests that overtake others: on time, they keep locks.
    #[must_use]
    pub fn urgent() -> Arc<Self> {
        Arc::new(Self { clock: Clock::default(), is_urgent: true, state: Mutex::default() })
    }

    /// When the first request was written; `None` if nothing was sent.
    #[must_use]
    pub fn written(&self) -> Option<Written> {
        self.state().first
    }

    /// How many requests were sent, or may have been.
    #[must_use]
    pub fn requests(&self) -> usize {
        let state = self.state();
        state.first.map_or(0, |_| usize::try_from(state.request).unwrap_or(usize::MAX))
    }

    /// Withdraws a request that is not written yet, and lets no other one follow it.
    pub fn withdraw(&self) {
        let mut state = self.state();
        if state.first.is_none() {
            state.is_withdrawn = true;
        }
    }

    /// Whether a request waits for its turn.
    #[must_use]
    pub fn waits(&self) -> bool {
        let state = self.state();
        state.request > 0 && matches!(state.phase, Phase::Waiting)
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.state().is_withdrawn
    }

    /// Begins the next request, and returns its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut state = self.state();
        state.request += 1;
        state.phase = Phase::Waiting;
        state.request
    }

    /// Notes that the request is about to be written now; `false` if nobody wants it any more.
    pub(crate) fn write(&self, request: u64, now: Instant) -> bool {
        let mut state = self.state();
        let is_wanted =
            state.request == request && !state.is_withdrawn && matches!(state.phase, Phase::Waiting);
        if is_wanted {
            state.phase = Phase::Written(now);
            state.first.get_or_insert_with(|| Written { at: now, on_clock: self.clock.now() });
        }
        is_wanted
    }

    /// When the request was written; `None` if it was not.
    pub(crate) fn written_at(&self, request: u64) -> Option<Instant> {
        match *self.state() {
            State { request: present, phase: Phase::Written(at), .. } if present == request => Some(at),
            _ => None,
        }
    }

    /// Notes that nobody waits for the request any more: it is not written after this. `false` if it was before.
    pub(crate) fn give_up(&self, request: u64) -> bool {
        let mut state = self.state();
        let is_waiting = state.request == request && matches!(state.phase, Phase::Waiting);
        if is_waiting {
            state.phase = Phase::GivenUp;
        }
        is_waiting
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_written_or_given_up() {
        let (dispatch, now) = (Dispatch::new(&Clock::boot()), Instant::now());
        let first = dispatch.begin();
        assert!(dispatch.give_up(first) && !dispatch.write(first, now) && dispatch.written().is_none());
        let second = dispatch.begin();
        assert!(!dispatch.write(first, now), "that of another connection, which was given up");
        assert!(dispatch.write(second, now) && !dispatch.give_up(second) && !dispatch.write(second, now));
        assert_eq!(dispatch.written_at(second), dispatch.written().map(|written| written.at));
        let third = dispatch.begin();
        dispatch.withdraw();
        assert!(dispatch.write(third, now), "it is too late to withdraw anything");

        let other = Dispatch::new(&Clock::boot());
        let request = other.begin();
        other.withdraw();
        assert!(!other.write(request, now) && !other.write(other.begin(), now) && other.written().is_none());
    }
}
