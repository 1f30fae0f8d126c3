//! A client whose mutexes are of the tested kind.

use std::ops::Deref;
use std::time::Duration;

use lock_core::{Guard, LockOptions, Locks, Mutex, Result, RwLock, Semaphore};
use tokio::time::Instant;

use super::Handle;

/// [`Locks`] whose mutexes are those of the tested [`Handle`].
#[derive(Clone, Debug)]
pub(super) struct Client {
    locks: Locks,
    handle: Handle,
}

/// An exclusive lock.
#[derive(Clone, Debug)]
pub(super) enum Alone {
    Mutex(Mutex),
    Write(RwLock),
    Permit(Semaphore),
}

impl Client {
    pub(super) fn new(locks: Locks, handle: Handle) -> Self {
        Self { locks, handle }
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    pub(super) fn mutex(&self, name: impl AsRef<str>) -> Alone {
        match self.handle {
            Handle::Mutex => Alone::Mutex(self.locks.mutex(name)),
            Handle::Write => Alone::Write(self.locks.rw(name)),
            Handle::Permit => Alone::Permit(self.locks.semaphore(name, 1)),
        }
    }

    pub(super) fn mutex_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Alone> {
        match self.handle {
            Handle::Mutex => self.locks.mutex_with(name, options).map(Alone::Mutex),
            Handle::Write => self.locks.rw_with(name, options).map(Alone::Write),
            Handle::Permit => self.locks.semaphore_with(name, 1, options).map(Alone::Permit),
        }
    }
}

impl Alone {
    pub(super) async fn acquire(&self) -> Result<Guard> {
        match self {
            Self::Mutex(mutex) => mutex.acquire().await,
            Self::Write(lock) => lock.write().await,
            Self::Permit(semaphore) => semaphore.acquire().await,
        }
    }

    pub(super) async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self {
            Self::Mutex(mutex) => mutex.try_acquire().await,
            Self::Write(lock) => lock.try_write().await,
            Self::Permit(semaphore) => semaphore.try_acquire().await,
        }
    }

    pub(super) async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        match self {
            Self::Mutex(mutex) => mutex.try_acquire_for(patience).await,
            Self::Write(lock) => lock.try_write_for(patience).await,
            Self::Permit(semaphore) => semaphore.try_acquire_for(patience).await,
        }
    }

    pub(super) async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        match self {
            Self::Mutex(mutex) => mutex.try_acquire_until(deadline).await,
            Self::Write(lock) => lock.try_write_until(deadline).await,
            Self::Permit(semaphore) => semaphore.try_acquire_until(deadline).await,
        }
    }
}

impl Deref for Client {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        &self.locks
    }
}
