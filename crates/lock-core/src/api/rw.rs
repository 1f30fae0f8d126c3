//! A read/write lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::handle::LockHandle;
use crate::process::connection::Connection;
use crate::{Guard, LockOptions, Mode, Result};

/// A read/write lock: either any number of readers or one writer at a time, over all processes that use
/// the same store.
///
/// Made by [`Locks::rw`](crate::Locks::rw). It is a handle and holds nothing itself: clone it freely.
/// Every reader has a lease and a fencing token of its own: the share of a reader that dies ends with its
/// lease, whatever the others do.
///
/// Where the backend is first come, first served ([`Capabilities::fifo`](crate::Capabilities::fifo)),
/// nobody starves: a reader waits for the writers ahead of it, and a writer for the readers ahead of it.
///
/// It is the same lock as the [`Mutex`](crate::Mutex) and the [`Semaphore`](crate::Semaphore) of its
/// name: the mutex is its write side. A writer can [become a reader](Guard::downgrade) without admitting
/// another writer. It is not re-entrant, and cannot be upgraded: a reader that acquires the write side
/// waits for itself. Release first, and read again. After a second of such a wait a warning names the reader.
///
/// Source of the idea: Courtois, Heymans, Parnas, "Concurrent control with readers and writers" (1971);
/// of the order: the fair queue of Mellor-Crummey and Scott, "Scalable reader-writer synchronization for
/// shared-memory multiprocessors" (1991).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let config = locks.rw("cfg");
/// let (one, two) = (config.read().await?, config.read().await?);
/// assert!(config.try_write().await?.is_none());
/// one.release().await?;
/// two.release().await?;
/// let mut writer = config.write().await?;
/// // From now on a reader, beside others.
/// writer.downgrade().await?;
/// assert!(config.try_read().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    reader: LockHandle,
    writer: LockHandle,
}

impl RwLock {
    pub(crate) fn new(connection: &Arc<Connection>, name: &str, options: &LockOptions) -> Self {
        let handle = |mode| LockHandle::new(Arc::clone(connection), name, mode, options);
        let reader = handle(Mode::Shared);
        // Without readers the write side fails too, so that a program notices at once.
        let writer =
            reader.check().map_or_else(|_| reader.clone(), |()| handle(Mode::Exclusive).into_writer());
        Self { reader, writer }
    }

    /// Fails if this lock can never be acquired.
    pub(crate) fn check(self) -> Result<Self> {
        self.reader.check().map(|()| self)
    }

    /// Acquires the read side, and waits as long as necessary.
    ///
    /// Dropping the guard releases this reader's share in the background, and no other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend has no read/write locks,
    /// and those of [`Mutex::acquire`](crate::Mutex::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the wait queue, and nothing behind: if the lock had
    /// been granted already, it is released in the background.
    ///
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    pub async fn read(&self) -> Result<Guard> {
        self.reader.acquire().await
    }

    /// Acquires the read side if it is free; `None` if there is a writer or a waiter.
    ///
    /// Errors and cancel safety as for [`read`](Self::read); a server that does not answer is given up as by
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.reader.try_acquire().await
    }

    /// Acquires the read side within `patience`, else returns `None`.
    ///
    /// Errors and cancel safety as for [`read`](Self::read); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_for`](crate::Mutex::try_acquire_for).
    pub async fn try_read_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.reader.try_acquire_for(patience).await
    }

    /// Acquires the read side before `deadline`, else returns `None`. If the deadline has passed, the server
    /// is still asked once.
    ///
    /// Errors and cancel safety as for [`read`](Self::read); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_until`](crate::Mutex::try_acquire_until).
    pub async fn try_read_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.reader.try_acquire_until(deadline).await
    }

    /// Acquires the write side, and waits as long as necessary.
    ///
    /// Dropping the guard releases the lock in the background.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read). Readers behind this waiter are admitted.
    pub async fn write(&self) -> Result<Guard> {
        self.writer.acquire().await
    }

    /// Acquires the write side if the lock is free; `None` if it is held or has waiters.
    ///
    /// Errors and cancel safety as for [`read`](Self::read); a server that does not answer is given up as by
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.writer.try_acquire().await
    }

    /// Acquires the write side within `patience`, else returns `None`.
    ///
    /// Errors and cancel safety as for [`write`](Self::write); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_for`](crate::Mutex::try_acquire_for).
    pub async fn try_write_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.writer.try_acquire_for(patience).await
    }

    /// Acquires the write side before `deadline`, else returns `None`. If the deadline has passed, the server
    /// is still asked once.
    ///
    /// Errors and cancel safety as for [`write`](Self::write); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_until`](crate::Mutex::try_acquire_until).
    pub async fn try_write_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.writer.try_acquire_until(deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcquireRequest, Acquired, Backend, Capabilities, ErrorKind, LeaseKind, LockName, LockState, Locks,
    };

    /// A backend that has exclusive locks only.
    #[derive(Debug)]
    struct Simple(Capabilities);

    #[async_trait::async_trait]
    impl Backend for Simple {
        fn capabilities(&self) -> &Capabilities {
            &self.0
        }

        async fn acquire(&self, _: AcquireRequest) -> Result<Acquired> {
            Ok(Acquired::Busy)
        }

        async fn inspect(&self, _: &LockName) -> Result<LockState> {
            Ok(LockState::free())
        }

        async fn break_lock(&self, _: &LockName) -> Result<bool> {
            Ok(false)
        }

        async fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_backend_without_readers_refuses_writers_too() {
        let lease = LeaseKind::Session { timeout: Duration::from_secs(1) };
        let locks = Locks::new(Simple(Capabilities::new("simple", lease)));
        let lock = locks.rw("a");
        for error in [
            lock.read().await.unwrap_err(),
            lock.try_write().await.unwrap_err(),
            locks.rw_with("a", LockOptions::new()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    }
}
