//! Several mutexes that are acquired together.

use std::mem;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::runtime::wait;
use super::{Guard, Mutex};
use crate::{BootInstant, Error, GuardState, LossReason, Released, Result, RunError, Validity};

/// Several mutexes, acquired together, as the asynchronous [`Multi`](crate::Multi): all or none, in one order for all callers.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::{Locks, Multi}};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let accounts = Multi::new([locks.mutex("account/7"), locks.mutex("account/3")])?;
/// let both = accounts.acquire()?;
/// both.run(|| {
///     for guard in both.guards() {
///         println!("{} with token {}", guard.name(), guard.token()); // account/3, then account/7
///     }
/// })?;
/// both.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Multi(crate::Multi);

impl Multi {
    /// These mutexes, in the common order.
    ///
    /// # Errors
    ///
    /// Those of [`Multi::new`](crate::Multi::new).
    pub fn new(mutexes: impl IntoIterator<Item = Mutex>) -> Result<Self> {
        crate::Multi::new(mutexes.into_iter().map(Mutex::into_async)).map(Self)
    }

    /// Acquires all of the locks, and blocks as long as necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Multi::acquire`](crate::Multi::acquire), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a
    /// tokio task.
    pub fn acquire(&self) -> Result<MultiGuard> {
        wait("acquire", self.0.acquire()).map(MultiGuard::new)
    }

    /// Acquires all of the locks if all are free; else `None`, and none of them stays held.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        wait("acquire", self.0.try_acquire()).map(|acquired| acquired.map(MultiGuard::new))
    }

    /// Acquires all of the locks within `patience`, which is one limit for all; else `None`, and none of them stays held.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_for(&self, patience: Duration) -> Result<Option<MultiGuard>> {
        wait("acquire", self.0.try_acquire_for(patience)).map(|acquired| acquired.map(MultiGuard::new))
    }

    /// Acquires all of the locks before `deadline`; else `None`, and none of them stays held.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<MultiGuard>> {
        let acquired = wait("acquire", self.0.try_acquire_until(deadline.into()));
        acquired.map(|acquired| acquired.map(MultiGuard::new))
    }
}

/// Several locks that are held together, as the asynchronous [`MultiGuard`](crate::MultiGuard): valid as long as all are.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::{Locks, Multi}};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let both = Multi::new([locks.mutex("a"), locks.mutex("b")])?.acquire()?;
/// locks.break_lock("a")?;
/// assert!(!both.is_valid() && both.guards()[1].is_valid());
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping it releases the locks in the background, the last one first.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    fn new(all: crate::MultiGuard) -> Self {
        Self { guards: all.into_guards().into_iter().map(Guard::new).collect() }
    }

    /// The guards, in the order of their acquisition.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The validity of all, which lasts as long as the shortest.
    #[must_use]
    pub fn validity(&self) -> Validity {
        let Some(all) = self.guards.iter().map(Guard::validity).reduce(Validity::and) else {
            unreachable!("it has a guard")
        };
        all
    }

    /// Whether all locks are held, and whether the servers still answer. Costs nothing.
    #[must_use]
    pub fn state(&self) -> GuardState {
        self.validity().state()
    }

    /// Whether all locks are valid. Costs nothing.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(Guard::is_valid)
    }

    /// The earliest deadline. Costs nothing.
    #[must_use]
    pub fn valid_until(&self) -> BootInstant {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(BootInstant::NEVER)
    }

    /// The time left until the earliest deadline, zero when a lock is lost. Costs nothing.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or(Duration::ZERO)
    }

    /// Blocks until one of the locks is lost, and returns the reason; `None` if all are held after `patience`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task.
    pub fn lost_within(&self, patience: Duration) -> Result<Option<LossReason>> {
        let validity = self.validity();
        wait("wait for a loss", async { Ok(timeout(patience, validity.lost()).await.ok()) })
    }

    /// Runs `body` on this thread if all locks are held, and checks them again after it; see [`Guard::run`].
    ///
    /// # Errors
    ///
    /// As [`Guard::run`]; the error names the lock that was lost.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> Result<T, RunError<T>> {
        if let Some(error) = self.lost_error() {
            return Err(RunError::not_acquired(error));
        }
        let output = body();
        match self.lost_error() {
            Some(error) => Err(RunError { error, output: Some(output) }),
            None => Ok(output),
        }
    }

    /// Releases the locks, all at once, and returns whether all were held until then.
    ///
    /// # Errors
    ///
    /// The first error of a [`Guard::release`]. The other locks are released all the same.
    pub fn release(mut self) -> Result<Released> {
        let guards = mem::take(&mut self.guards).into_iter().map(Guard::into_async);
        wait("release", crate::MultiGuard::from_guards(guards.collect()).release())
    }

    fn lost_error(&self) -> Option<Error> {
        self.guards.iter().find_map(Guard::lost_error)
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}
