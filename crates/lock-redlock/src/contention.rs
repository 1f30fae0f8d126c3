//! Whether others want a lock, as far as was seen.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long it is remembered that a lock was wanted by others: a process that gives one back and asks again at once is
/// to know of those whom the masters have just called.
const MEMORY: Duration = Duration::from_secs(1);

/// Whether others have been seen to want a lock, of late.
#[derive(Debug, Default)]
pub(crate) struct Contention(Mutex<Option<Instant>>);

impl Contention {
    /// Notes that a lock is busy, or that others wait for it.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn is_likely(&self) -> bool {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|at| at.elapsed() < MEMORY)
    }
}
