//! An exclusive lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::Guard;
use super::runtime::wait;
use crate::api::run::conclude;
use crate::{GuardView, Result, RunError};

/// An exclusive lock, as the asynchronous [`Mutex`](crate::Mutex). It holds nothing itself: clone it freely.
///
/// Made by [`Locks::mutex`](super::Locks::mutex). Threads of one process get the lock in the order of their calls. It is not
/// re-entrant: a thread that acquires a lock that it holds waits for itself. [`Reentrant`](super::Reentrant) is an owner that
/// may.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let order = locks.mutex("orders/42");
/// let guard = order.acquire()?;
/// assert!(order.try_acquire_for(Duration::from_millis(10))?.is_none());
/// guard.release()?;
/// assert!(order.try_acquire()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex(crate::Mutex);

impl Mutex {
    pub(super) const fn new(mutex: crate::Mutex) -> Self {
        Self(mutex)
    }

    pub(super) fn into_async(self) -> crate::Mutex {
        self.0
    }

    pub(super) fn as_async(&self) -> &crate::Mutex {
        &self.0
    }

    /// Acquires the lock, and blocks as long as necessary. [`Locks::close`](super::Locks::close) ends the wait.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::acquire`](crate::Mutex::acquire), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a
    /// tokio task.
    pub fn acquire(&self) -> Result<Guard> {
        wait("acquire", self.0.acquire()).map(Guard::new)
    }

    /// Acquires the lock if it is free; `None` if it is held or has waiters. Blocks for the answer of the server only.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire()).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the lock within `patience`, else returns `None`.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire_for(patience)).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the lock before `deadline`, else returns `None`. If the deadline has passed, the server is still asked once.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire_until(deadline.into())).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the lock, runs `body` on this thread, and releases the lock, also when the body panics.
    ///
    /// The body gets a [view](GuardView) of the guard. Nothing stops it when the lock is lost: a long one checks
    /// `view.validity().is_valid()`. `Ok` means that the lock was held until its end. The release is awaited.
    ///
    /// * **The body fails**: what it returns is the output, and the lock is released.
    /// * **The body panics**: the lock is released, then the panic continues.
    /// * **The release is not answered**: that is no error, as with [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # use lock_core::{MemoryConfig, blocking::Locks};
    /// # fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::from(MemoryConfig::new().connect()?);
    /// let sum = locks.mutex("orders/42").run(|view| {
    ///     println!("writing under token {}", view.token());
    ///     40 + 2
    /// })?;
    /// assert_eq!(sum, 42);
    /// assert!(locks.mutex("orders/42").try_acquire()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`Lost`](crate::ErrorKind::Lost) when the lock was lost before `body` ended:
    /// [`RunError::into_output`] has what `body` returned.
    pub fn run<T>(&self, body: impl FnOnce(GuardView) -> T) -> Result<T, RunError<T>> {
        let guard = self.acquire().map_err(RunError::not_acquired)?;
        let ran = catch_unwind(AssertUnwindSafe(|| guard.run(|| body(guard.view()))));
        let lost = guard.as_async().found_lost();
        conclude(ran, lost, guard.release())
    }
}
