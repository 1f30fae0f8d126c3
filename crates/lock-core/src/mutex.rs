//! An exclusive lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::contender::Contender;
use crate::locks::Shared;
use crate::{Guard, LockOptions, Mode, Result};

/// An exclusive lock: at most one holder at a time, over all processes that use the same store.
///
/// Made by [`Locks::mutex`](crate::Locks::mutex). It is a handle and holds nothing itself: clone it
/// freely, acquire it as often as you like. Tasks of one process get the lock in the order in which
/// they asked; only the first of them talks to the server.
///
/// The [`RwLock`](crate::RwLock) and the [`Semaphore`](crate::Semaphore) of the same name are the same
/// lock: who holds the mutex excludes their holders.
///
/// It is not re-entrant: a task that acquires a lock that it holds waits for itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    contender: Contender,
}

impl Mutex {
    pub(crate) fn new(shared: Arc<Shared>, name: &str, options: &LockOptions) -> Self {
        Self { contender: Contender::new(shared, name, Mode::Exclusive, options) }
    }

    /// Why this lock can never be acquired, if so.
    pub(crate) fn check(self) -> Result<Self> {
        self.contender.check().map(|()| self)
    }

    /// Takes the lock, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the server does not answer, or stops answering for longer than
    /// a lease or session lasts; [`ErrorKind::InvalidName`] when the name is; [`ErrorKind::Denied`] when the server
    /// refuses us; [`ErrorKind::InvalidConfig`] for a time to live that the backend cannot give;
    /// [`ErrorKind::Closed`] once the [locks were closed](crate::Locks::close).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing behind: if the lock had
    /// been granted already, it is released in the background. A future that is kept and not polled keeps its
    /// place, as with tokio's own mutex: those of this process behind it wait for it.
    ///
    /// [`ErrorKind::Unavailable`]: crate::ErrorKind::Unavailable
    /// [`ErrorKind::InvalidName`]: crate::ErrorKind::InvalidName
    /// [`ErrorKind::Denied`]: crate::ErrorKind::Denied
    /// [`ErrorKind::InvalidConfig`]: crate::ErrorKind::InvalidConfig
    /// [`ErrorKind::Closed`]: crate::ErrorKind::Closed
    pub async fn acquire(&self) -> Result<Guard> {
        self.contender.acquire().await
    }

    /// Takes the lock if it is free: `None` when somebody holds it or waits for it.
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

    /// Takes the lock, waiting for `patience` at most: `None` when it is not ours by then.
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

    /// Takes the lock, waiting until `deadline` at most: `None` when it is not ours by then. A deadline
    /// that has passed asks once.
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
