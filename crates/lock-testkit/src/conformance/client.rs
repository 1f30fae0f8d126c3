//! A client whose mutexes are of the tested kind.

use std::ops::Deref;
use std::time::Duration;

use lock_core::{LockOptions, Locks, Multi, Mutex, Reentrant, ReentrantGuard, Result, RwLock, Semaphore};
use tokio::time::Instant;

use super::Handle;
use super::held::Held;

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
    Reentrant(Reentrant),
    /// The mutexes of a [`Multi`], which refuses bad names at once: handles do so when they are used.
    Multi(Vec<Mutex>),
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
            Handle::Reentrant => Alone::Reentrant(Reentrant::new(&self.locks.mutex(name))),
            Handle::MultiOfOne | Handle::MultiOfTwo => {
                let names = self.handle.names(name.as_ref());
                Alone::Multi(names.iter().map(|name| self.locks.mutex(name)).collect())
            }
        }
    }

    pub(super) fn mutex_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Alone> {
        match self.handle {
            Handle::Mutex => self.locks.mutex_with(name, options).map(Alone::Mutex),
            Handle::Write => self.locks.rw_with(name, options).map(Alone::Write),
            Handle::Permit => self.locks.semaphore_with(name, 1, options).map(Alone::Permit),
            Handle::Reentrant => {
                let mutex = self.locks.mutex_with(name, options)?;
                Ok(Alone::Reentrant(Reentrant::new(&mutex)))
            }
            Handle::MultiOfOne | Handle::MultiOfTwo => {
                let names = self.handle.names(name.as_ref());
                let mutexes = names.iter().map(|name| self.locks.mutex_with(name, options.clone()));
                mutexes.collect::<Result<_>>().map(Alone::Multi)
            }
        }
    }

    /// Breaks all locks that the handle of this name acquires.
    pub(super) async fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let mut was_held = true;
        for name in self.handle.names(name.as_ref()) {
            was_held &= self.locks.break_lock(name).await?;
        }
        Ok(was_held)
    }
}

impl Alone {
    pub(super) async fn acquire(&self) -> Result<Held> {
        match self {
            Self::Mutex(mutex) => mutex.acquire().await.map(Held::from),
            Self::Write(lock) => lock.write().await.map(Held::from),
            Self::Permit(semaphore) => semaphore.acquire().await.map(Held::from),
            Self::Reentrant(owner) => nested(owner, owner.acquire().await?).await,
            Self::Multi(mutexes) => multi(mutexes)?.acquire().await.map(Held::Multi),
        }
    }

    pub(super) async fn try_acquire(&self) -> Result<Option<Held>> {
        match self {
            Self::Mutex(mutex) => held(mutex.try_acquire().await),
            Self::Write(lock) => held(lock.try_write().await),
            Self::Permit(semaphore) => held(semaphore.try_acquire().await),
            Self::Reentrant(owner) => nested_if(owner, owner.try_acquire().await?).await,
            Self::Multi(mutexes) => Ok(multi(mutexes)?.try_acquire().await?.map(Held::Multi)),
        }
    }

    pub(super) async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Held>> {
        match self {
            Self::Mutex(mutex) => held(mutex.try_acquire_for(patience).await),
            Self::Write(lock) => held(lock.try_write_for(patience).await),
            Self::Permit(semaphore) => held(semaphore.try_acquire_for(patience).await),
            Self::Reentrant(owner) => nested_if(owner, owner.try_acquire_for(patience).await?).await,
            Self::Multi(mutexes) => Ok(multi(mutexes)?.try_acquire_for(patience).await?.map(Held::Multi)),
        }
    }

    pub(super) async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Held>> {
        match self {
            Self::Mutex(mutex) => held(mutex.try_acquire_until(deadline).await),
            Self::Write(lock) => held(lock.try_write_until(deadline).await),
            Self::Permit(semaphore) => held(semaphore.try_acquire_until(deadline).await),
            Self::Reentrant(owner) => nested_if(owner, owner.try_acquire_until(deadline).await?).await,
            Self::Multi(mutexes) => Ok(multi(mutexes)?.try_acquire_until(deadline).await?.map(Held::Multi)),
        }
    }
}

impl Deref for Client {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        &self.locks
    }
}

fn held(acquired: Result<Option<lock_core::Guard>>) -> Result<Option<Held>> {
    Ok(acquired?.map(Held::from))
}

fn multi(mutexes: &[Mutex]) -> Result<Multi> {
    Multi::new(mutexes.iter().cloned())
}

/// The owner acquires the lock once more: the cases hold both guards, and end one after the other.
async fn nested(owner: &Reentrant, outer: ReentrantGuard) -> Result<Held> {
    Ok(Held::Reentrant { inner: owner.acquire().await?, outer })
}

async fn nested_if(owner: &Reentrant, outer: Option<ReentrantGuard>) -> Result<Option<Held>> {
    match outer {
        Some(outer) => nested(owner, outer).await.map(Some),
        None => Ok(None),
    }
}
