//! The lock that the command line names, in its mode.

use std::sync::Arc;

use polylock::{Guard, LockOptions, Locks, Mutex, Persistence, Result, RwLock, Semaphore};
use tokio::time::Instant;

use super::AcquireOptions;
use super::refusals::Refusals;
use crate::failure::Failure;

/// A lock in one mode.
pub(super) enum Lock {
    Exclusive(Mutex),
    Shared(RwLock),
    Permit(Semaphore),
}

impl Lock {
    /// With `persists`, refusals do not end an acquisition, not even of its first request.
    pub(super) fn new(
        locks: &Locks,
        options: &AcquireOptions,
        label: &str,
        persists: bool,
        refusals: &Arc<Refusals>,
    ) -> Result<Self> {
        let persistence = match (options.strict, persists) {
            (true, _) => Persistence::Strict,
            (false, true) => Persistence::Always,
            (false, false) => Persistence::Queued,
        };
        let refusals = Arc::clone(refusals);
        let lock = LockOptions::new().label(label).persistence(persistence);
        let lock = lock.on_refused(move |error| refusals.say(&Failure::from(error.clone())));
        let lock = options.ttl.into_iter().fold(lock, LockOptions::ttl);
        let lock = options.hold_at_least.into_iter().fold(lock, LockOptions::hold_at_least);
        let name = &options.name;
        Ok(match options.permits {
            Some(permits) => Self::Permit(locks.semaphore_with(name, permits.get(), lock)?),
            None if options.shared => Self::Shared(locks.rw_with(name, lock)?),
            None => Self::Exclusive(locks.mutex_with(name, lock)?),
        })
    }

    /// Acquires the lock; `None` when it is busy and the wait is over.
    pub(super) async fn acquire(&self, is_try: bool, until: Option<Instant>) -> Result<Option<Guard>> {
        match (self, until) {
            (Self::Exclusive(lock), _) if is_try => lock.try_acquire().await,
            (Self::Exclusive(lock), Some(until)) => lock.try_acquire_until(until).await,
            (Self::Exclusive(lock), None) => lock.acquire().await.map(Some),
            (Self::Shared(lock), _) if is_try => lock.try_read().await,
            (Self::Shared(lock), Some(until)) => lock.try_read_until(until).await,
            (Self::Shared(lock), None) => lock.read().await.map(Some),
            (Self::Permit(lock), _) if is_try => lock.try_acquire().await,
            (Self::Permit(lock), Some(until)) => lock.try_acquire_until(until).await,
            (Self::Permit(lock), None) => lock.acquire().await.map(Some),
        }
    }
}
