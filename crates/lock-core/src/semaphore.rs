//! A lock for a limited number at once.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::contender::Contender;
use crate::locks::Shared;
use crate::{Error, ErrorKind, Guard, LockName, LockOptions, Mode, Result};

/// A semaphore: at most `max` holders at a time, over all processes that use the same store.
///
/// Made by [`Locks::semaphore`](crate::Locks::semaphore). It is a handle and holds nothing itself: clone
/// it freely. Each guard is one permit, with a lease and a fencing token of its own; the permit of a
/// holder that dies ends with its lease, whatever the others do.
///
/// `max` is that of the one who asks: it gets a permit as long as fewer than its own `max` are out. So
/// processes that disagree, as during a deployment, never have more out than the largest `max` among
/// them; and the one with the smallest waits until the others leave it room.
///
/// It is the same lock as the [`Mutex`](crate::Mutex) and the [`RwLock`](crate::RwLock) of its name: who
/// holds the mutex keeps all permits back. It is not re-entrant: a task that holds the last permit and
/// asks for another waits for itself.
///
/// Source of the idea: Dijkstra, "Cooperating sequential processes" (1965).
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
    contender: Contender,
}

impl Semaphore {
    pub(crate) fn new(shared: Arc<Shared>, name: &str, max: u32, options: &LockOptions) -> Self {
        let contender = match NonZeroU32::new(max) {
            Some(max) => Contender::new(shared, name, Mode::Permit { max }, options),
            None => {
                let why = without_permits(shared.backend_name(), name);
                Contender::refused(shared, why)
            }
        };
        Self { contender }
    }

    /// Why this lock can never be acquired, if so.
    pub(crate) fn check(self) -> Result<Self> {
        self.contender.check().map(|()| self)
    }

    /// Takes a permit, waiting as long as it takes.
    ///
    /// Dropping the guard gives the permit back in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend has no semaphores, [`ErrorKind::InvalidConfig`] when
    /// `max` is 0, [`ErrorKind::Unavailable`] when the server does not answer, or stops answering for
    /// longer than a lease or session lasts; [`ErrorKind::InvalidName`] when the name is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing behind: if a permit had been
    /// granted already, it is given back in the background.
    pub async fn acquire(&self) -> Result<Guard> {
        self.contender.acquire().await
    }

    /// Takes a permit if there is one: `None` when all are out, or somebody waits for one.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.contender.try_acquire().await
    }

    /// Takes a permit, waiting for `patience` at most: `None` when there is none for us by then.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.contender.try_acquire_for(patience).await
    }

    /// Takes a permit, waiting until `deadline` at most: `None` when there is none for us by then. A
    /// deadline that has passed asks once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.contender.try_acquire_until(deadline).await
    }
}

fn without_permits(backend: &'static str, name: &str) -> Error {
    match LockName::new(name) {
        Ok(name) => Error::new(ErrorKind::InvalidConfig, backend)
            .with_message("a semaphore without permits can never be acquired")
            .with_hint("give it one at least")
            .on(&name),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryConfig;

    #[tokio::test]
    async fn one_without_permits_is_refused() {
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
