//! Renews leases: one request for all that are due.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tokio::time::sleep;

use super::blocked::Pauses;
use super::{Changed, Extension, LeaseStore};
use crate::drift::valid_until;
use crate::renewal::{Due, Renew, Renewed};
use crate::{Capabilities, Clock, Error, ErrorKind, Outcome, OwnerId};

/// How often a lease is tried whose record something else has.
const TRIES: u32 = 5;

/// Renews a batch of leases.
#[derive(Debug)]
pub(super) struct RenewOnStore<S> {
    /// The leases keep it.
    store: Weak<S>,
    backend: &'static str,
    clock: Clock,
}

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(super) struct HeldLock<P> {
    pub(super) place: P,
    pub(super) owner: OwnerId,
}

impl<S> RenewOnStore<S> {
    pub(super) fn new(store: &Arc<S>, capabilities: &Capabilities, clock: Clock) -> Self {
        Self { store: Arc::downgrade(store), backend: capabilities.backend, clock }
    }
}

#[async_trait]
impl<S: LeaseStore> Renew for RenewOnStore<S> {
    type Key = Arc<HeldLock<S::Place>>;

    async fn renew(&self, batch: &[Due<Self::Key>]) -> Vec<Renewed> {
        let Some(store) = self.store.upgrade() else {
            return batch.iter().map(|_| Renewed::Unknown(Error::closed(self.backend))).collect();
        };
        let mut renewed: Vec<_> = batch.iter().map(|_| Renewed::Unknown(self.blocked())).collect();
        let (mut left, mut pauses): (Vec<usize>, _) = ((0..batch.len()).collect(), Pauses::default());
        for _ in 0..TRIES {
            let extension = |&at: &usize| {
                let Due { key: held, ttl, shortens, .. } = &batch[at];
                Extension { place: &held.place, owner: held.owner, ttl: *ttl, shortens: *shortens }
            };
            let extensions: Vec<_> = left.iter().map(extension).collect();
            let sent = self.clock.now();
            let mut answers = store.extend(&extensions).await.into_iter();
            left.retain(|&at| {
                let answer = answers.next().unwrap_or_else(|| Err(self.unanswered()));
                renewed[at] = match answer {
                    Ok(Changed::Done(())) => Renewed::Until(valid_until(sent, batch[at].ttl)),
                    Ok(Changed::NotHeld) => Renewed::Lost,
                    Ok(Changed::Blocked) => return true,
                    Err(error) => Renewed::Unknown(error),
                };
                false
            });
            if left.is_empty() {
                break;
            }
            sleep(pauses.next()).await;
        }
        renewed
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

impl<S> RenewOnStore<S> {
    fn blocked(&self) -> Error {
        Error::new(ErrorKind::Unavailable, self.backend)
            .with_message("something else has the record of the lease")
            .with_hint("it is renewed again soon")
    }

    fn unanswered(&self) -> Error {
        Error::new(ErrorKind::Unexpected, self.backend)
            .with_message("the store answered too few of the extensions")
            .with_outcome(Outcome::Unknown)
    }
}
