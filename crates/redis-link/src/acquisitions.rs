//! The acquisitions of this process that a wait queue may know of.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{GuardState, OwnerId, Validity};

use crate::take_back::Sent;

/// The acquisitions of this process that wait in a queue, or acquired their lock there.
///
/// An acquisition is registered before the server can know of it, and until its lock is released or what it may have left
/// is removed: no notification is about an acquisition that is yet to be registered.
#[derive(Debug, Default)]
pub struct Acquisitions(Mutex<HashMap<OwnerId, Stage>>);

/// One of the [`Acquisitions`], as long as it exists.
pub struct Registration {
    all: Arc<Acquisitions>,
    owner: OwnerId,
}

#[derive(Debug)]
enum Stage {
    Waits,
    Held(Validity),
    /// What it may have left is being removed.
    Ends {
        /// Whether its last request was not answered.
        in_doubt: bool,
    },
}

/// Whether a grant is kept or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Wanted,
    /// Given up a moment ago: a grant that crosses the removal of its entry is nothing unusual.
    GivenUp,
    /// Its acquisition ended some time ago.
    Unwanted,
}

impl Acquisitions {
    /// Registers an acquisition, before anything is sent that may put it into a queue.
    #[must_use]
    pub fn register(self: &Arc<Self>, owner: OwnerId) -> Registration {
        self.by_owner().insert(owner, Stage::Waits);
        Registration { all: Arc::clone(self), owner }
    }

    pub(crate) fn interest(&self, owner: OwnerId) -> Interest {
        match self.by_owner().get(&owner) {
            None | Some(Stage::Ends { in_doubt: true }) => Interest::Unwanted,
            Some(Stage::Ends { in_doubt: false }) => Interest::GivenUp,
            // A lease that was lost stays lost, also if the server grants it again.
            Some(Stage::Held(validity)) if matches!(validity.state(), GuardState::Lost(_)) => {
                Interest::GivenUp
            }
            Some(Stage::Waits | Stage::Held(_)) => Interest::Wanted,
        }
    }

    fn by_owner(&self) -> MutexGuard<'_, HashMap<OwnerId, Stage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Notes that it holds the lock for as long as this is valid.
    pub fn holds(&self, validity: Validity) {
        self.all.by_owner().insert(self.owner, Stage::Held(validity));
    }

    /// Notes that it was given up, and what is known of its last request.
    pub fn ends(&self, last: Sent) {
        let in_doubt = last != Sent::Answered;
        self.all.by_owner().insert(self.owner, Stage::Ends { in_doubt });
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
    fn an_acquisition_is_known_until_it_has_ended() {
        let all = Arc::<Acquisitions>::default();
        let owner = OwnerId::random();
        assert_eq!(all.interest(owner), Interest::Unwanted);
        let registration = all.register(owner);
        assert_eq!(all.interest(owner), Interest::Wanted);
        registration.ends(Sent::Answered);
        assert_eq!(all.interest(owner), Interest::GivenUp);
        // Its request was carried out when nobody waited for it any more.
        registration.ends(Sent::InDoubt { connection: None });
        assert_eq!(all.interest(owner), Interest::Unwanted);
        drop(registration);
        assert_eq!(all.interest(owner), Interest::Unwanted);
    }
}
