//! A lock for many readers or one writer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::contender::Contender;
use crate::locks::Shared;
use crate::{Guard, LockOptions, Mode, Result};

/// A read/write lock: at a time either any number of readers or one writer, over all processes that use
/// the same store.
///
/// Made by [`Locks::rw`](crate::Locks::rw). It is a handle and holds nothing itself: clone it freely.
/// Every reader has a lease and a fencing token of its own; the lock of one that dies ends with its
/// lease, whatever the others do.
///
/// Where the backend keeps the order in which processes ask
/// ([`Capabilities::fifo`](crate::Capabilities::fifo)), a reader that comes after a waiting writer waits
/// behind it, and a writer waits for the readers before it: nobody starves.
///
/// It is the same lock as the [`Mutex`](crate::Mutex) and the [`Semaphore`](crate::Semaphore) of its
/// name: to hold the mutex is to write. A writer can [become a reader](Guard::downgrade) without letting
/// another writer in. It is not re-entrant, and cannot be upgraded: a task that reads and asks to write
/// waits for itself. Release first, and look again at what you have read.
///
/// Source of the idea: Courtois, Heymans, Parnas, "Concurrent control with readers and writers" (1971);
/// of the order: the fair queue of Mellor-Crummey and Scott, "Scalable reader-writer synchronization for
/// shared-memory multiprocessors" (1991).
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
/// // What was written is read on, and others may read it too.
/// writer.downgrade().await?;
/// assert!(config.try_read().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    reader: Contender,
    writer: Contender,
}

impl RwLock {
    pub(crate) fn new(shared: &Arc<Shared>, name: &str, options: &LockOptions) -> Self {
        let contender = |mode| Contender::new(Arc::clone(shared), name, mode, options);
        let reader = contender(Mode::Shared);
        // Who cannot read is not surprised by it later than by the first write.
        let writer =
            reader.check().map_or_else(|_| reader.clone(), |()| contender(Mode::Exclusive).that_writes());
        Self { reader, writer }
    }

    /// Why this lock can never be acquired, if so.
    pub(crate) fn check(self) -> Result<Self> {
        self.reader.check().map(|()| self)
    }

    /// Takes the lock together with other readers, waiting as long as it takes.
    ///
    /// Dropping the guard ends this reader's share in the background, and no other's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] where the backend has no read/write locks,
    /// [`ErrorKind::Unavailable`] when the server does not answer, or stops answering for longer than a
    /// lease or session lasts; [`ErrorKind::InvalidName`] when the name is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing behind: if the lock had
    /// been granted already, it is released in the background.
    ///
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    /// [`ErrorKind::Unavailable`]: crate::ErrorKind::Unavailable
    /// [`ErrorKind::InvalidName`]: crate::ErrorKind::InvalidName
    pub async fn read(&self) -> Result<Guard> {
        self.reader.acquire().await
    }

    /// Takes the lock together with other readers if that is possible now: `None` when somebody writes or
    /// waits for it.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.reader.try_acquire().await
    }

    /// Takes the lock together with other readers, waiting for `patience` at most: `None` when it is not
    /// ours by then.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_read_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.reader.try_acquire_for(patience).await
    }

    /// Takes the lock together with other readers, waiting until `deadline` at most: `None` when it is
    /// not ours by then. A deadline that has passed asks once.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_read_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.reader.try_acquire_until(deadline).await
    }

    /// Takes the lock alone, waiting as long as it takes.
    ///
    /// Dropping the guard releases the lock in the background.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read). Readers that waited behind this writer go on.
    pub async fn write(&self) -> Result<Guard> {
        self.writer.acquire().await
    }

    /// Takes the lock alone if it is free: `None` when somebody holds it or waits for it.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.writer.try_acquire().await
    }

    /// Takes the lock alone, waiting for `patience` at most: `None` when it is not ours by then.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
    pub async fn try_write_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.writer.try_acquire_for(patience).await
    }

    /// Takes the lock alone, waiting until `deadline` at most: `None` when it is not ours by then. A
    /// deadline that has passed asks once.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As [`write`](Self::write).
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

    /// A store that knows only exclusive locks.
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
    async fn where_nobody_can_read_nobody_can_write_either() {
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
