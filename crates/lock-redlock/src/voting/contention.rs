//! Remembers recent contention.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long contention is remembered: the fast path is in vain while there are waiters, and a first request that joins the queue
/// saves one.
const MEMORY: Duration = Duration::from_secs(1);

/// Whether this client recently found a lock contended.
#[derive(Debug, Default)]
pub(crate) struct Contention(Mutex<Option<Instant>>);

impl Contention {
    /// Notes that a lock is busy, or has waiters.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn is_likely(&self) -> bool {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|at| at.elapsed() < MEMORY)
    }
}
