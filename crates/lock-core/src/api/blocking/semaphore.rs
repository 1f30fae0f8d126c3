//! A semaphore.

use std::time::{Duration, Instant};

use super::Guard;
use super::runtime::wait;
use crate::Result;

/// A semaphore, as the asynchronous [`Semaphore`](crate::Semaphore). It holds nothing itself: clone it freely.
///
/// Made by [`Locks::semaphore`](super::Locks::semaphore). Each guard is one permit.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let gpus = locks.semaphore("gpu", 2);
/// let (one, two) = (gpus.acquire()?, gpus.acquire()?);
/// assert!(gpus.try_acquire()?.is_none());
/// one.release()?;
/// assert!(gpus.try_acquire()?.is_some());
/// # drop(two);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

impl Semaphore {
    pub(super) const fn new(semaphore: crate::Semaphore) -> Self {
        Self(semaphore)
    }

    /// Acquires a permit, and blocks as long as necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Semaphore::acquire`](crate::Semaphore::acquire), and [`Unsupported`](crate::ErrorKind::Unsupported) inside
    /// of a tokio task. So it is for the methods below.
    pub fn acquire(&self) -> Result<Guard> {
        wait("acquire", self.0.acquire()).map(Guard::new)
    }

    /// Acquires a permit if one is free; `None` if all are held or there are waiters.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire()).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires a permit within `patience`, else returns `None`.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire_for(patience)).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires a permit before `deadline`, else returns `None`.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_acquire_until(deadline.into())).map(|acquired| acquired.map(Guard::new))
    }
}
