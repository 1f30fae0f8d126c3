//! One master of the quorum.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use lock_redis::Server;
use lock_redis::server::{Claim, Extension, Verdict};
use tokio::time::Instant;

/// A master that did not answer is left alone for this long, so that it costs nothing meanwhile.
const REST: Duration = Duration::from_millis(250);

/// One master, which is not asked again for a while after it failed to answer.
#[derive(Debug)]
pub(crate) struct Master {
    pub(crate) server: Server,
    resting: Mutex<Option<(Instant, Error)>>,
}

impl Master {
    pub(crate) fn new(server: Server) -> Arc<Self> {
        Arc::new(Self { server, resting: Mutex::default() })
    }

    pub(crate) async fn claim(&self, claim: &Claim<'_>) -> Result<Verdict> {
        self.asked()?;
        self.note(self.server.claim(claim).await)
    }

    pub(crate) async fn extend(&self, leases: &[Extension<'_>]) -> Result<Vec<Result<bool>>> {
        self.asked()?;
        self.note(self.server.extend(leases).await)
    }

    /// Refuses while the master rests, with the error that it rests for; nothing is sent then.
    fn asked(&self) -> Result<()> {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        match &*resting {
            Some((until, error)) if Instant::now() < *until => {
                Err(error.clone().with_outcome(lock_core::Outcome::NotApplied))
            }
            _ => Ok(()),
        }
    }

    fn note<T>(&self, answer: Result<T>) -> Result<T> {
        let rest = answer.as_ref().err().filter(|error| error.kind() == ErrorKind::Unavailable);
        let rest = rest.map(|error| (Instant::now() + REST, error.clone()));
        *self.resting.lock().unwrap_or_else(PoisonError::into_inner) = rest;
        answer
    }
}
