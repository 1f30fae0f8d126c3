//! Renews leases: one call for all that are due.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::renewal::{Due, Renew, Renewed};
use lock_core::{Error, ErrorKind, OwnerId};
use tokio::time::sleep;

use crate::context::Context;
use crate::error::BACKEND;
use crate::locked_row::LockedRow;
use crate::server::{Changed, Server};

/// How many leases one call extends: its transaction lasts for some milliseconds then.
const AT_ONCE: usize = 500;
/// How often a lease is tried whose row another request has.
const TRIES: u32 = 5;

/// Renews a batch of leases.
#[derive(Debug)]
pub(crate) struct RenewOnServer {
    pub(crate) server: Arc<Server>,
}

/// A held lock, as its renewals need it.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) name: Arc<str>,
    pub(crate) owner: OwnerId,
}

#[async_trait]
impl Renew for RenewOnServer {
    type Key = Arc<HeldLock>;

    async fn renew(&self, batch: &[Due<Self::Key>]) -> Vec<Renewed> {
        let parts = join_all(batch.chunks(AT_ONCE).map(|part| self.renew_part(part))).await;
        parts.into_iter().flatten().collect()
    }

    fn spares_longer(&self) -> bool {
        true
    }
}

impl RenewOnServer {
    async fn renew_part(&self, part: &[Due<Arc<HeldLock>>]) -> Vec<Renewed> {
        let mut renewed: Vec<_> = part.iter().map(|_| Renewed::Unknown(locked())).collect();
        let (mut left, mut row): (Vec<usize>, _) = ((0..part.len()).collect(), LockedRow::default());
        for _ in 0..TRIES {
            let lease = |&at: &usize| {
                let Due { key: held, ttl, shortens, .. } = &part[at];
                (&*held.name, held.owner, *ttl, *shortens)
            };
            let leases: Vec<_> = left.iter().map(lease).collect();
            let sent = self.server.clock.now();
            let answers = match self.server.extend(&leases).await {
                Ok(answers) => answers,
                Err(error) => {
                    left.iter().for_each(|&at| renewed[at] = Renewed::Unknown(error.clone()));
                    break;
                }
            };
            for (&at, answer) in left.iter().zip(&answers) {
                match answer {
                    Changed::Done(()) => {
                        renewed[at] = Renewed::Until(Context::valid_until(sent, part[at].ttl));
                    }
                    Changed::NotHeld => renewed[at] = Renewed::Lost,
                    Changed::Locked => {}
                }
            }
            left = left
                .into_iter()
                .zip(answers)
                .filter(|(_, answer)| *answer == Changed::Locked)
                .map(|(at, _)| at)
                .collect();
            if left.is_empty() {
                break;
            }
            sleep(row.next_pause()).await;
        }
        renewed
    }
}

fn locked() -> Error {
    Error::new(ErrorKind::Unavailable, BACKEND)
        .with_message("another transaction has the row of the lease")
        .with_hint("it is renewed again soon")
}
