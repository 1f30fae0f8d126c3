//! The lock that the command line names, in its mode.

use std::sync::Arc;

use polylock::{Guard, LockOptions, Locks, Mutex, Persistence, Result, RwLock, Semaphore};
use tokio::time::Instant;

use super::RunOptions;
use super::refusals::Refusals;
use crate::failure::Failure;

/// A lock in one mode.
pub(super) enum Lock {
    Exclusive(Mutex),
    Shared(RwLock),
    Permit(Semaphore),
}

impl Lock {
    pub(super) fn new(locks: &Locks, options: &RunOptions, refusals: &Arc<Refusals>) -> Result<Self> {
        let (name, lock) = (&options.name, lock_options(options, Arc::clone(refusals)));
        Ok(match options.permits {
            Some(permits) => Self::Permit(locks.semaphore_with(name, permits.get(), lock)?),
            None if options.shared => Self::Shared(locks.rw_with(name, lock)?),
            None => Self::Exclusive(locks.mutex_with(name, lock)?),
        })
    }

    /// Acquires the lock; `None` when it is busy and the wait is over.
    pub(super) async fn acquire(&self, options: &RunOptions) -> Result<Option<Guard>> {
        let deadline = options.wait.and_then(|wait| Instant::now().checked_add(wait));
        match (self, deadline) {
            (Self::Exclusive(lock), _) if options.no_wait => lock.try_acquire().await,
            (Self::Exclusive(lock), Some(deadline)) => lock.try_acquire_until(deadline).await,
            (Self::Exclusive(lock), None) => lock.acquire().await.map(Some),
            (Self::Shared(lock), _) if options.no_wait => lock.try_read().await,
            (Self::Shared(lock), Some(deadline)) => lock.try_read_until(deadline).await,
            (Self::Shared(lock), None) => lock.read().await.map(Some),
            (Self::Permit(lock), _) if options.no_wait => lock.try_acquire().await,
            (Self::Permit(lock), Some(deadline)) => lock.try_acquire_until(deadline).await,
            (Self::Permit(lock), None) => lock.acquire().await.map(Some),
        }
    }
}

fn lock_options(options: &RunOptions, refusals: Arc<Refusals>) -> LockOptions {
    let persistence = match (options.strict, options.restart) {
        (true, _) => Persistence::Strict,
        (false, true) => Persistence::Always,
        (false, false) => Persistence::Queued,
    };
    // Without the arguments, which may have secrets.
    let lock = LockOptions::new().label(options.command[0].to_string_lossy()).persistence(persistence);
    let lock = lock.on_refused(move |error| refusals.say(&Failure::from(error.clone())));
    let lock = options.ttl.into_iter().fold(lock, LockOptions::ttl);
    options.hold_at_least.into_iter().fold(lock, LockOptions::hold_at_least)
}
