//! A semaphore.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::handle::LockHandle;
use crate::process::connection::Connection;
use crate::{Error, ErrorKind, Guard, LockName, LockOptions, Mode, Result};

/// A semaphore: at most `max` holders at a time, over all processes that use the same store.
///
/// Made by [`Locks::semaphore`](crate::Locks::semaphore). It is a handle and holds nothing itself: clone
/// it freely. Each guard is one permit, with a lease and a fencing token of its own: the permit of a
/// holder that dies ends with its lease, whatever the others do.
///
/// `max` is that of the caller: it gets a permit while there are fewer holders than its own `max`. Callers
/// may disagree, as during a deployment:
///
/// * There are never more holders than the largest `max` among them.
/// * A waiter whose `max` is used up lets those with a larger one pass; on Redis, those with no more than
///   256 waiters before them. Waiters with the same `max` get their permits in order.
/// * A waiter gets its own when there are fewer holders than its `max`. ZooKeeper does not count those that came
///   later.
///
/// The tasks of one process do not pass each other: let each process use one `max` for a name.
///
/// It is the same lock as the [`Mutex`](crate::Mutex) and the [`RwLock`](crate::RwLock) of its name: the
/// holder of the mutex excludes all permits. It is not re-entrant: a task that holds the last permit and
/// acquires another waits for itself.
///
/// Source of the idea: Dijkstra, "Cooperating sequential processes" (1965).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let gpus = locks.semaphore("gpu", 2);
/// let (one, two) = (gpus.acquire().await?, gpus.acquire().await?);
/// assert!(gpus.try_acquire().await?.is_none());
/// one.release().await?;
/// assert!(gpus.try_acquire().await?.is_some());
/// # drop(two);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    handle: LockHandle,
}

impl Semaphore {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, max: u32, options: &LockOptions) -> Self {
        let handle = match NonZeroU32::new(max) {
            Some(max) => LockHandle::new(connection, name, Mode::Permit { max }, options),
            None => {
                let why = no_permits(connection.backend_name(), name);
                LockHandle::refused(connection, why)
            }
        };
        Self { handle }
    }

    /// Fails if this lock can never be acquired.
    pub(crate) fn check(self) -> Result<Self> {
        self.handle.check().map(|()| self)
    }

    /// Acquires a permit, and waits as long as necessary.
    ///
    /// Dropping the guard releases the permit in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend has no semaphores, [`ErrorKind::InvalidConfig`] when
    /// `max` is 0, and those of [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the wait queue, and nothing behind: if a permit had been
    /// granted already, it is released in the background.
    pub async fn acquire(&self) -> Result<Guard> {
        self.handle.acquire().await
    }

    /// Acquires a permit if one is free; `None` if all are held or there are waiters.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.handle.try_acquire().await
    }

    /// Acquires a permit within `patience`, else returns `None`.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_for`](crate::Mutex::try_acquire_for).
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.handle.try_acquire_for(patience).await
    }

    /// Acquires a permit before `deadline`, else returns `None`. If the deadline has passed, the server is
    /// still asked once.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_until`](crate::Mutex::try_acquire_until).
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.handle.try_acquire_until(deadline).await
    }
}

fn no_permits(backend: &'static str, name: &str) -> Error {
    match LockName::new(name) {
        Ok(name) => Error::new(ErrorKind::InvalidConfig, backend)
            .with_message("a semaphore without permits can never be acquired")
            .with_hint("give it at least one permit")
            .on(&name),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryConfig;

    #[tokio::test]
    async fn a_semaphore_without_permits_is_refused() {
        let locks = MemoryConfig::new().connect().unwrap();
        for error in [
            locks.semaphore("a", 0).acquire().await.unwrap_err(),
            locks.semaphore("a", 0).try_acquire().await.unwrap_err(),
            locks.semaphore_with("a", 0, LockOptions::new()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains("lock \"a\": a semaphore without permits"), "{error}");
        }
        assert_eq!(locks.semaphore("", 0).acquire().await.unwrap_err().kind(), ErrorKind::InvalidName);
    }
}
