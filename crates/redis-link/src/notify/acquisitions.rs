//! The acquisitions of this process that may have an entry in a wait queue.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{GuardState, OwnerId, Validity};

use crate::scripts::take_back::Sent;

/// The acquisitions of this process that wait in a queue, or acquired their lock there.
///
/// An acquisition is registered before its first request, and until its lock is released or has ended, or its remains are removed. So
/// a notification for an owner that is not registered always belongs to an acquisition that ended.
#[derive(Debug, Default)]
pub struct Acquisitions(Mutex<ByOwner>);

#[derive(Debug, Default)]
struct ByOwner {
    stages: HashMap<OwnerId, Stage>,
    /// Those whose lock was left to end by itself.
    lapsing: Vec<OwnerId>,
    /// How many of these may be kept before the ended ones are removed.
    most_lapsing: usize,
}

/// So few locks that were left to end are kept until more come.
const FEW: usize = 64;

/// The registration of one acquisition; dropping it ends the registration.
pub struct Registration {
    all: Arc<Acquisitions>,
    owner: OwnerId,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Held(Validity),
    /// Given up; its remains on the server are being removed.
    Ended {
        /// Whether its last request got no answer.
        in_doubt: bool,
    },
}

/// Whether a grant is kept or returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Wanted,
    /// Given up a moment ago: a grant often crosses the removal of its entry, and is not worth a warning.
    GivenUp,
    /// Its acquisition ended some time ago.
    Unwanted,
}

impl Acquisitions {
    /// Registers an acquisition, before anything is sent that may put it into a queue.
    #[must_use]
    pub fn register(self: &Arc<Self>, owner: OwnerId) -> Registration {
        self.by_owner().stages.insert(owner, Stage::Waiting);
        Registration { all: Arc::clone(self), owner }
    }

    pub(crate) fn interest(&self, owner: OwnerId) -> Interest {
        match self.by_owner().stages.get(&owner) {
            None | Some(Stage::Ended { in_doubt: true }) => Interest::Unwanted,
            Some(Stage::Ended { in_doubt: false }) => Interest::GivenUp,
            // A lost lease stays lost, even if the server grants the lock again.
            Some(held @ Stage::Held(_)) if !held.lasts() => Interest::GivenUp,
            Some(Stage::Waiting | Stage::Held(_)) => Interest::Wanted,
        }
    }

    fn by_owner(&self) -> MutexGuard<'_, ByOwner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stage {
    /// Whether the lock is held.
    fn lasts(&self) -> bool {
        matches!(self, Self::Held(validity) if !matches!(validity.state(), GuardState::Lost(_)))
    }
}

impl ByOwner {
    /// Ends a registration, at once or when its lock has ended: a grant that is notified late must not return a lock that is
    /// [held at least](lock_core::LockOptions::hold_at_least) for a time.
    fn end(&mut self, owner: OwnerId) -> Option<Stage> {
        if !self.stages.get(&owner).is_some_and(Stage::lasts) {
            return self.stages.remove(&owner);
        }
        self.lapsing.push(owner);
        if self.lapsing.len() > self.most_lapsing {
            let Self { stages, lapsing, most_lapsing } = self;
            lapsing.retain(|owner| {
                let lasts = stages.get(owner).is_some_and(Stage::lasts);
                if !lasts {
                    stages.remove(owner);
                }
                lasts
            });
            *most_lapsing = 2 * lapsing.len() + FEW;
        }
        None
    }
}

impl Registration {
    /// Notes that the acquisition holds the lock while this is valid.
    pub fn holds(&self, validity: Validity) {
        self.all.by_owner().stages.insert(self.owner, Stage::Held(validity));
    }

    /// Notes that the acquisition was given up, and the state of its last request.
    pub fn ends(&self, last: Sent) {
        let in_doubt = last != Sent::Answered;
        self.all.by_owner().stages.insert(self.owner, Stage::Ended { in_doubt });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Dropped outside the mutex.
        let stage = self.all.by_owner().end(self.owner);
        drop(stage);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.owner).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_core::{Clock, ValidityCell};

    use super::*;

    #[test]
    fn an_acquisition_is_registered_until_it_ends() {
        let all = Arc::<Acquisitions>::default();
        let owner = OwnerId::random();
        assert_eq!(all.interest(owner), Interest::Unwanted);
        let registration = all.register(owner);
        assert_eq!(all.interest(owner), Interest::Wanted);
        registration.ends(Sent::Answered);
        assert_eq!(all.interest(owner), Interest::GivenUp);
        // The server may have run the request after the caller gave up.
        registration.ends(Sent::InDoubt { connection: None });
        assert_eq!(all.interest(owner), Interest::Unwanted);
        drop(registration);
        assert_eq!(all.interest(owner), Interest::Unwanted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_left_to_end_is_wanted_until_then() {
        let (all, clock) = (Arc::<Acquisitions>::default(), Clock::tokio());
        let left = |span: Duration| {
            let (owner, cell) = (OwnerId::random(), ValidityCell::new(clock.clone(), clock.now() + span));
            let registration = all.register(owner);
            registration.holds(cell.validity());
            drop(registration);
            (owner, cell)
        };
        let (owner, _cell) = left(Duration::from_secs(60));
        assert_eq!(all.interest(owner), Interest::Wanted);
        let ended: Vec<_> = (0..10 * FEW).map(|_| left(Duration::from_secs(1))).collect();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(all.interest(ended[0].0), Interest::GivenUp);
        // They are forgotten when others come, and the first is not.
        let _more: Vec<_> = (0..20 * FEW + FEW).map(|_| left(Duration::from_secs(30))).collect();
        assert_eq!(all.interest(ended[0].0), Interest::Unwanted);
        assert_eq!(all.interest(owner), Interest::Wanted);
        assert!(all.by_owner().stages.len() <= 1 + 21 * FEW);
        // One that was released is not left to end.
        let registration = all.register(owner);
        let cell = ValidityCell::new(clock.clone(), clock.now() + Duration::from_secs(60));
        registration.holds(cell.validity());
        cell.lose(lock_core::LossReason::Released);
        drop(registration);
        assert_eq!(all.interest(owner), Interest::Unwanted);
    }
}
