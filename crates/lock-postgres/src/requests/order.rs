//! The order of a request: the connection that it has, or its place among those that wait for one.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::BootInstant;
use lock_core::engine::Order;
use tokio::sync::Notify;

use crate::connect::connection::Connection;

/// How a request is sent.
#[derive(Clone, Debug)]
pub enum InOrder {
    /// By itself: a connection was free.
    Alone(Connection),
    /// With others that wait for a connection.
    Grouped(Arc<Place>),
}

impl Order for InOrder {
    fn is_open(&self) -> bool {
        match self {
            Self::Alone(on) => on.is_open(),
            Self::Grouped(place) => match &*place.state() {
                State::Alone(on, _) => on.is_open(),
                // What follows is sent when there is an answer.
                State::Waiting | State::Sent(_) | State::Answered(_) => true,
                State::Withdrawn | State::Lost(_) => false,
            },
        }
    }

    fn requests(&self) -> usize {
        match self {
            Self::Alone(_) => 1,
            Self::Grouped(place) => usize::from(place.sent_at().is_some()),
        }
    }

    fn withdraw(&self) {
        if let Self::Grouped(place) = self {
            place.withdraw();
        }
    }

    /// From when it was sent, as it may have waited for a connection.
    fn counts_from(&self, asked: BootInstant) -> BootInstant {
        match self {
            Self::Alone(_) => asked,
            Self::Grouped(place) => place.sent_at().unwrap_or(asked),
        }
    }
}

/// What becomes of a request that waits for a connection.
#[derive(Debug, Default)]
pub struct Place {
    state: Mutex<State>,
    /// Notifies that it was answered, or that there will be no answer.
    has_ended: Notify,
}

/// The moment is that at which it was sent first.
#[derive(Debug, Default)]
enum State {
    #[default]
    Waiting,
    /// It was not sent, and never is.
    Withdrawn,
    /// With others.
    Sent(BootInstant),
    Answered(BootInstant),
    /// There is no answer. It may still be executed.
    Lost(BootInstant),
    /// By itself after all, over this connection.
    Alone(Connection, BootInstant),
}

impl Place {
    /// Notes that it is sent with others now; `false` if it was withdrawn.
    pub(crate) fn send(&self, now: BootInstant) -> bool {
        let mut state = self.state();
        let is_waiting = matches!(*state, State::Waiting);
        if is_waiting {
            *state = State::Sent(now);
        }
        is_waiting
    }

    /// Notes that it was answered, or that there will be no answer.
    pub(crate) fn end(&self, is_answered: bool) {
        let mut state = self.state();
        if let State::Sent(first) = *state {
            *state = if is_answered { State::Answered(first) } else { State::Lost(first) };
            self.has_ended.notify_waiters();
        }
    }

    /// Notes that a request is sent by itself over this connection now, unless there is one of which nothing is known any more.
    pub(crate) fn send_alone(&self, on: &Connection, now: BootInstant) {
        let mut state = self.state();
        let first = match *state {
            State::Lost(_) | State::Withdrawn => return,
            State::Waiting => now,
            State::Sent(first) | State::Answered(first) | State::Alone(_, first) => first,
        };
        let before = mem::replace(&mut *state, State::Alone(on.clone(), first));
        drop(state);
        // Outside the mutex: it may give a connection back.
        drop(before);
    }

    /// Waits until it is neither about to be sent nor in flight.
    pub(crate) async fn ended(&self) {
        loop {
            let has_ended = self.has_ended.notified();
            if !matches!(*self.state(), State::Sent(_)) {
                return;
            }
            has_ended.await;
        }
    }

    /// Keeps it from being sent; `false` if it was.
    pub(crate) fn withdraw(&self) -> bool {
        let mut state = self.state();
        if let State::Waiting = *state {
            *state = State::Withdrawn;
        }
        matches!(*state, State::Withdrawn)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(*self.state(), State::Waiting)
    }

    /// The connection of a request that was sent by itself: what is sent over it now is executed after that.
    pub(crate) fn connection(&self) -> Option<Connection> {
        match &*self.state() {
            State::Alone(on, _) => Some(on.clone()),
            _ => None,
        }
    }

    fn sent_at(&self) -> Option<BootInstant> {
        match *self.state() {
            State::Waiting | State::Withdrawn => None,
            State::Sent(first) | State::Answered(first) | State::Lost(first) | State::Alone(_, first) => {
                Some(first)
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use lock_core::Clock;
    use tokio::time::Duration;

    use super::*;

    fn place() -> (InOrder, Arc<Place>) {
        let place = Arc::<Place>::default();
        (InOrder::Grouped(Arc::clone(&place)), place)
    }

    #[test]
    fn what_is_withdrawn_is_never_sent() {
        let (order, place) = place();
        order.withdraw();
        assert!(!place.send(Clock::boot().now()) && !place.is_waiting());
        assert_eq!(order.requests(), 0);
    }

    #[test]
    fn what_is_sent_cannot_be_withdrawn_and_counts_from_then() {
        let (order, place) = place();
        let now = Clock::boot().now();
        assert!(place.send(now) && !place.withdraw());
        assert_eq!((order.requests(), order.is_open()), (1, true));
        assert_eq!(order.counts_from(now + Duration::from_secs(1)), now);
    }

    /// Else a roll-back over a later connection would count as one that follows it.
    #[test]
    fn what_is_lost_stays_so() {
        let (order, place) = place();
        place.send(Clock::boot().now());
        place.end(false);
        place.end(true);
        assert!(!order.is_open() && !place.send(Clock::boot().now()));
    }

    #[tokio::test]
    async fn what_follows_waits_for_the_end() {
        let (_, place) = place();
        place.send(Clock::boot().now());
        let mut ended = Box::pin(place.ended());
        assert!(futures_util::poll!(&mut ended).is_pending());
        place.end(true);
        ended.await;
    }
}
