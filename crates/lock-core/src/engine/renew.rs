//! Renews leases: one request for all that are due.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::time::sleep;

use super::blocked::Pauses;
use super::{Changed, EngineOptions, Extension, LeaseStore};
use crate::drift::valid_until;
use crate::renewal::{Due, Renew, Renewed};
use crate::{Capabilities, Clock, Error, ErrorKind, OwnerId};

/// How often a lease is tried whose record something else has.
const TRIES: u32 = 5;

/// Renews a batch of leases.
#[derive(Debug)]
pub(super) struct RenewOnStore<S> {
    store: Arc<S>,
    backend: &'static str,
    at_once: usize,
    clock: Clock,
}

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(super) struct HeldLock<P> {
    pub(super) place: P,
    pub(super) owner: OwnerId,
}

impl<S> RenewOnStore<S> {
    pub(super) fn new(store: &Arc<S>, capabilities: &Capabilities, options: &EngineOptions) -> Self {
        let (backend, at_once) = (capabilities.backend, options.extends_at_once);
        Self { store: Arc::clone(store), backend, at_once, clock: options.clock.clone() }
    }
}

#[async_trait]
impl<S: LeaseStore> Renew for RenewOnStore<S> {
    type Key = Arc<HeldLock<S::Place>>;

    async fn renew(&self, batch: &[Due<Self::Key>]) -> Vec<Renewed> {
        let parts = join_all(batch.chunks(self.at_once).map(|part| self.renew_part(part))).await;
        parts.into_iter().flatten().collect()
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

impl<S: LeaseStore> RenewOnStore<S> {
    async fn renew_part(&self, part: &[Due<Arc<HeldLock<S::Place>>>]) -> Vec<Renewed> {
        let mut renewed: Vec<_> = part.iter().map(|_| Renewed::Unknown(self.blocked())).collect();
        let (mut left, mut pauses): (Vec<usize>, _) = ((0..part.len()).collect(), Pauses::default());
        for _ in 0..TRIES {
            let extension = |&at: &usize| {
                let Due { key: held, ttl, shortens, .. } = &part[at];
                Extension { place: &held.place, owner: held.owner, ttl: *ttl, shortens: *shortens }
            };
            let extensions: Vec<_> = left.iter().map(extension).collect();
            let sent = self.clock.now();
            let answers = match self.store.extend(&extensions).await {
                Ok(answers) => answers,
                Err(error) => {
                    left.iter().for_each(|&at| renewed[at] = Renewed::Unknown(error.clone()));
                    break;
                }
            };
            for (&at, answer) in left.iter().zip(&answers) {
                match answer {
                    Changed::Done(()) => renewed[at] = Renewed::Until(valid_until(sent, part[at].ttl)),
                    Changed::NotHeld => renewed[at] = Renewed::Lost,
                    Changed::Blocked => {}
                }
            }
            let blocked = left.iter().zip(&answers).filter(|(_, answer)| **answer == Changed::Blocked);
            left = blocked.map(|(&at, _)| at).collect();
            if left.is_empty() {
                break;
            }
            sleep(pauses.next()).await;
        }
        renewed
    }

    fn blocked(&self) -> Error {
        Error::new(ErrorKind::Unavailable, self.backend)
            .with_message("another transaction has the row of the lease")
            .with_hint("it is renewed again soon")
    }
}
