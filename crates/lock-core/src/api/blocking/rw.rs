//! A read/write lock.

use std::time::{Duration, Instant};

use super::Guard;
use super::runtime::wait;
use crate::Result;

/// A read/write lock, as the asynchronous [`RwLock`](crate::RwLock). It holds nothing itself: clone it freely.
///
/// Made by [`Locks::rw`](super::Locks::rw). It is not re-entrant, and cannot be upgraded.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::Locks};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let config = locks.rw("cfg");
/// let (one, two) = (config.read()?, config.read()?);
/// assert!(config.try_write()?.is_none());
/// one.release()?;
/// two.release()?;
/// let mut writer = config.write()?;
/// writer.downgrade()?; // from now on a reader, beside others
/// assert!(config.try_read()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock);

impl RwLock {
    pub(super) const fn new(lock: crate::RwLock) -> Self {
        Self(lock)
    }

    /// Acquires the read side, and blocks as long as necessary.
    ///
    /// # Errors
    ///
    /// Those of [`RwLock::read`](crate::RwLock::read), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio
    /// task. So it is for the methods below.
    pub fn read(&self) -> Result<Guard> {
        wait("acquire", self.0.read()).map(Guard::new)
    }

    /// Acquires the read side if it is free; `None` if there is a writer or a waiter.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_read(&self) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_read()).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the read side within `patience`, else returns `None`.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_read_for(&self, patience: Duration) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_read_for(patience)).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the read side before `deadline`, else returns `None`.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_read_until(deadline.into())).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the write side, and blocks as long as necessary.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn write(&self) -> Result<Guard> {
        wait("acquire", self.0.write()).map(Guard::new)
    }

    /// Acquires the write side if the lock is free; `None` if it is held or has waiters.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_write(&self) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_write()).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the write side within `patience`, else returns `None`.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_write_for(&self, patience: Duration) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_write_for(patience)).map(|acquired| acquired.map(Guard::new))
    }

    /// Acquires the write side before `deadline`, else returns `None`.
    ///
    /// Errors as for [`read`](Self::read).
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        wait("acquire", self.0.try_write_until(deadline.into())).map(|acquired| acquired.map(Guard::new))
    }
}
