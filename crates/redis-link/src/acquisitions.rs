//! The acquisitions of this process that may have an entry in a wait queue.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{GuardState, OwnerId, Validity};

use crate::take_back::Sent;

/// The acquisitions of this process that wait in a queue, or acquired their lock there.
///
/// An acquisition is registered before its first request, and until its lock is released or its remains are removed. So
/// a notification for an owner that is not registered always belongs to an acquisition that ended.
#[derive(Debug, Default)]
pub struct Acquisitions(Mutex<HashMap<OwnerId, Stage>>);

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
        self.by_owner().insert(owner, Stage::Waiting);
        Registration { all: Arc::clone(self), owner }
    }

    pub(crate) fn interest(&self, owner: OwnerId) -> Interest {
        match self.by_owner().get(&owner) {
            None | Some(Stage::Ended { in_doubt: true }) => Interest::Unwanted,
            Some(Stage::Ended { in_doubt: false }) => Interest::GivenUp,
            // A lost lease stays lost, even if the server grants the lock again.
            Some(Stage::Held(validity)) if matches!(validity.state(), GuardState::Lost(_)) => {
                Interest::GivenUp
            }
            Some(Stage::Waiting | Stage::Held(_)) => Interest::Wanted,
        }
    }

    fn by_owner(&self) -> MutexGuard<'_, HashMap<OwnerId, Stage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Notes that the acquisition holds the lock while this is valid.
    pub fn holds(&self, validity: Validity) {
        self.all.by_owner().insert(self.owner, Stage::Held(validity));
    }

    /// Notes that the acquisition was given up, and the state of its last request.
    pub fn ends(&self, last: Sent) {
        let in_doubt = last != Sent::Answered;
        self.all.by_owner().insert(self.owner, Stage::Ended { in_doubt });
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let stage = self.all.by_owner().remove(&self.owner);
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
}
