//! A mutex that its owner may acquire again while it holds it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::runtime::wait;
use super::{Guard, Mutex};
use crate::{Released, Result};

/// An owner of a [`Mutex`], which may acquire it again while it holds it; as the asynchronous
/// [`Reentrant`](crate::Reentrant).
///
/// The owner is this value, not a thread: clones are the same owner in any thread, another [`Reentrant::new`] of the same
/// mutex is another owner. For an owner per thread, as Java has it, keep one in a `thread_local!`.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::{Locks, Reentrant}};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let owner = Reentrant::new(&locks.mutex("orders/42"));
/// let outer = owner.acquire()?;
/// let inner = owner.acquire()?;
/// assert_eq!((inner.token(), inner.depth()), (outer.token(), 2));
/// assert_eq!(outer.release()?, None); // the inner guard holds the lock
/// assert!(inner.release()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reentrant(crate::Reentrant);

impl Reentrant {
    /// A new owner of this mutex.
    #[must_use]
    pub fn new(mutex: &Mutex) -> Self {
        Self(crate::Reentrant::new(mutex.as_async()))
    }

    /// Acquires the lock, or adds a guard if this owner holds it. Blocks as long as necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Reentrant::acquire`](crate::Reentrant::acquire), and [`Unsupported`](crate::ErrorKind::Unsupported) inside
    /// of a tokio task.
    pub fn acquire(&self) -> Result<ReentrantGuard> {
        wait("acquire", self.0.acquire()).map(ReentrantGuard::new)
    }

    /// Acquires the lock if it is free or held by this owner; else `None`, as while another thread of this owner waits for it.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<ReentrantGuard>> {
        wait("acquire", self.0.try_acquire()).map(|acquired| acquired.map(ReentrantGuard::new))
    }

    /// Acquires the lock within `patience`, else returns `None`.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_for(&self, patience: Duration) -> Result<Option<ReentrantGuard>> {
        wait("acquire", self.0.try_acquire_for(patience)).map(|acquired| acquired.map(ReentrantGuard::new))
    }

    /// Acquires the lock before `deadline`, else returns `None`.
    ///
    /// Errors as for [`acquire`](Self::acquire).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<ReentrantGuard>> {
        let acquired = wait("acquire", self.0.try_acquire_until(deadline.into()));
        acquired.map(|acquired| acquired.map(ReentrantGuard::new))
    }
}

/// One of the guards that the owner of a [`Reentrant`] has. It dereferences to the [`Guard`] of the lock, which all share.
///
/// # Examples
///
/// ```
/// # use lock_core::{MemoryConfig, blocking::{Locks, Reentrant}};
/// # fn main() -> lock_core::Result<()> {
/// # let locks = Locks::from(MemoryConfig::new().connect()?);
/// let owner = Reentrant::new(&locks.mutex("orders/42"));
/// let guard = owner.acquire()?;
/// guard.run(|| println!("writing under token {}", guard.token()))?;
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping the last guard of the owner releases the lock in the background.
#[derive(Debug)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReentrantGuard(Guard);

impl ReentrantGuard {
    fn new(guard: crate::ReentrantGuard) -> Self {
        Self(Guard::shared(guard.into_shared()))
    }

    /// How many guards the owner has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.depth()
    }

    /// Ends this guard, and releases the lock if it was the last one of its owner. `None` while another guard holds the lock.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`].
    pub fn release(self) -> Result<Option<Released>> {
        match Arc::into_inner(self.0.into_shared()) {
            Some(guard) => wait("release", guard.release()).map(Some),
            None => Ok(None),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
