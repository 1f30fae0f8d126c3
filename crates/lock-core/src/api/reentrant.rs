//! A mutex that its owner may acquire again while it holds it.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout_at};

use crate::api::handle::LockKey;
use crate::values::error::NO_BACKEND;
use crate::{Error, ErrorKind, Guard, Mutex, Released, Result};

tokio::task_local! {
    static CALL_CHAIN: CallChain;
}

/// The owners of one call chain, by lock.
type CallChain = Arc<SyncMutex<HashMap<LockKey, Reentrant>>>;

/// An owner of a [`Mutex`], which may acquire it again while it holds it.
///
/// The owner is this value, not a thread or a task: clones are the same owner and may live in any task, another
/// [`Reentrant::new`] of the same mutex is another owner, and both exclude each other, as they exclude other processes.
/// The first guard costs what a mutex costs. The guards after it cost no round trip, and have the same
/// [token](Guard::token) and deadline. The lock is released with the last of them, in whatever order they end.
///
/// | `java.util.concurrent.locks.Lock` | here |
/// |---|---|
/// | `lock()` | [`acquire()`](Self::acquire) |
/// | `lockInterruptibly()` | `acquire()` as well: drop its future, by `select!`, a timeout or the end of its task |
/// | `tryLock()` | [`try_acquire()`](Self::try_acquire) |
/// | `tryLock(time, unit)` | [`try_acquire_for(patience)`](Self::try_acquire_for) |
/// | `unlock()` | [`release()`](ReentrantGuard::release) of a guard, or its drop |
///
/// * **Two tasks of one owner acquire at once**: one of them asks the server, the other waits for it and nests. When the
///   first one gives up, the other asks.
/// * **The lock is lost**: all guards of the owner report it. Until the last of them ends, the owner acquires nothing:
///   [`ErrorKind::Lost`]. The work that began under the lost lock must not go on under the next one.
///
/// Re-entrancy hides which code holds a lock. Where you can, hand the guard down instead.
///
/// Source of the idea: Java's `ReentrantLock`, which Curator's `InterProcessMutex` and Redisson's `RLock` follow. Theirs
/// belong to a thread, which a task has not.
///
/// # Examples
///
/// ```
/// # use lock_core::Reentrant;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let (one, two) = (Reentrant::new(&locks.mutex("orders/42")), Reentrant::new(&locks.mutex("orders/42")));
/// let outer = one.acquire().await?;
/// let inner = one.acquire().await?;
/// assert_eq!(inner.token(), outer.token());
/// assert_eq!(outer.release().await?, None); // the inner guard holds the lock
/// assert!(two.try_acquire().await?.is_none());
/// inner.release().await?;
/// assert!(two.try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reentrant {
    mutex: Mutex,
    owner: Arc<Owner>,
}

#[derive(Debug, Default)]
struct Owner {
    /// Alive while a guard of this owner is.
    hold: SyncMutex<Weak<Guard>>,
    /// Locked by the task that asks for the lock.
    asking: AsyncMutex<()>,
}

impl Reentrant {
    /// A new owner of this mutex.
    #[must_use]
    pub fn new(mutex: &Mutex) -> Self {
        Self { mutex: mutex.clone(), owner: Arc::default() }
    }

    /// Runs `body` as one call chain: within it, [`of_call_chain`](Self::of_call_chain) is the same owner everywhere.
    /// Within another call chain it only runs `body`.
    ///
    /// A task that `body` spawns is outside of the chain: give it a clone of the owner.
    ///
    /// ```
    /// # use lock_core::{Locks, Reentrant, Result};
    /// async fn outer(locks: &Locks) -> Result<()> {
    ///     let guard = Reentrant::of_call_chain(&locks.mutex("orders/42"))?.acquire().await?;
    ///     inner(locks).await?;
    ///     guard.release().await.map(drop)
    /// }
    ///
    /// async fn inner(locks: &Locks) -> Result<()> {
    ///     let guard = Reentrant::of_call_chain(&locks.mutex("orders/42"))?.acquire().await?; // nested
    ///     guard.release().await.map(drop)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = lock_core::MemoryConfig::new().connect()?;
    /// Reentrant::call_chain(outer(&locks)).await
    /// # }
    /// ```
    pub async fn call_chain<F: Future>(body: F) -> F::Output {
        match CALL_CHAIN.try_with(CallChain::clone) {
            Ok(_) => body.await,
            Err(_) => CALL_CHAIN.scope(CallChain::default(), body).await,
        }
    }

    /// The owner of this mutex in the present [call chain](Self::call_chain). The options of the first handle of a lock
    /// in a chain count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] outside of a call chain, [`ErrorKind::InvalidName`] for an invalid name.
    pub fn of_call_chain(mutex: &Mutex) -> Result<Self> {
        let key = mutex.key()?;
        let owner = CALL_CHAIN.try_with(|chain| {
            let mut owners = chain.lock().unwrap_or_else(PoisonError::into_inner);
            owners.entry(key).or_insert_with(|| Self::new(mutex)).clone()
        });
        owner.map_err(|_| {
            Error::new(ErrorKind::Unsupported, NO_BACKEND)
                .with_message("this task is in no call chain, so it has no owner of its own")
                .with_hint("wrap its work in Reentrant::call_chain, or give it a clone of the owner")
        })
    }

    /// Acquires the lock, or adds a guard if this owner holds it.
    ///
    /// # Errors
    ///
    /// Those of [`Mutex::acquire`], and [`ErrorKind::Lost`] while the owner has guards of a lock that it lost: end them
    /// first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind, as for [`Mutex::acquire`], and takes nothing from the guards that the
    /// owner has. A future that is kept but not polled lets other tasks of the owner wait.
    pub async fn acquire(&self) -> Result<ReentrantGuard> {
        if let Some(nested) = self.nested()? {
            return Ok(nested);
        }
        let _asking = self.mutex.unless_closed(self.owner.asking.lock()).await?;
        match self.nested()? {
            Some(nested) => Ok(nested),
            None => self.mutex.acquire().await.map(|guard| self.first(guard)),
        }
    }

    /// Acquires the lock if it is free or held by this owner; else `None`, as while another task of this owner waits for
    /// it.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    pub async fn try_acquire(&self) -> Result<Option<ReentrantGuard>> {
        if let Some(nested) = self.nested()? {
            return Ok(Some(nested));
        }
        let Ok(_asking) = self.owner.asking.try_lock() else { return Ok(None) };
        match self.nested()? {
            Some(nested) => Ok(Some(nested)),
            None => Ok(self.mutex.try_acquire().await?.map(|guard| self.first(guard))),
        }
    }

    /// Acquires the lock within `patience`, else returns `None`.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_for`](crate::Mutex::try_acquire_for).
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<ReentrantGuard>> {
        match Instant::now().checked_add(patience) {
            Some(deadline) => self.try_acquire_until(deadline).await,
            None => self.acquire().await.map(Some),
        }
    }

    /// Acquires the lock before `deadline`, else returns `None`. If the deadline has passed, the server is still asked
    /// once, unless another task of this owner asks it.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire); a server that does not answer is given up as by
    /// [`Mutex::try_acquire_until`](crate::Mutex::try_acquire_until).
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<ReentrantGuard>> {
        if let Some(nested) = self.nested()? {
            return Ok(Some(nested));
        }
        let asking = self.mutex.unless_closed(timeout_at(deadline, self.owner.asking.lock()));
        let Ok(_asking) = asking.await? else { return Ok(None) };
        match self.nested()? {
            Some(nested) => Ok(Some(nested)),
            None => Ok(self.mutex.try_acquire_until(deadline).await?.map(|guard| self.first(guard))),
        }
    }

    /// Another guard, if this owner holds the lock.
    fn nested(&self) -> Result<Option<ReentrantGuard>> {
        let held = self.owner.hold().upgrade();
        match held {
            Some(guard) if guard.is_valid() => Ok(Some(ReentrantGuard(guard))),
            Some(guard) => Err(guard.lost_while_nested()),
            None => Ok(None),
        }
    }

    fn first(&self, guard: Guard) -> ReentrantGuard {
        let guard = Arc::new(guard);
        *self.owner.hold() = Arc::downgrade(&guard);
        ReentrantGuard(guard)
    }
}

impl Owner {
    fn hold(&self) -> std::sync::MutexGuard<'_, Weak<Guard>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the guards that the owner of a [`Reentrant`] has.
///
/// It dereferences to the [`Guard`] of the lock, which all guards of the owner share: its token, its deadline, and its
/// signals, which end when the lock is released.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let owner = lock_core::Reentrant::new(&locks.mutex("orders/42"));
/// let (outer, inner) = (owner.acquire().await?, owner.acquire().await?);
/// assert_eq!(inner.depth(), 2);
/// drop(inner);
/// outer.run(async { /* the work; dropped when the lock is lost */ }).await?;
/// outer.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Drop
///
/// Dropping the last guard of the owner releases the lock in the background. Until that is done, the owner waits for it as
/// other tasks do.
#[derive(Debug)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReentrantGuard(Arc<Guard>);

impl ReentrantGuard {
    #[cfg(feature = "blocking")]
    pub(crate) fn into_shared(self) -> Arc<Guard> {
        self.0
    }

    /// How many guards the owner has.
    #[must_use]
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Ends this guard, and releases the lock if it was the last one of its owner. `None` while another guard holds the
    /// lock.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<Option<Released>> {
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await.map(Some),
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

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;
    use crate::{Clock, Locks, MemoryConfig};

    /// Shorter than a lease.
    const PATIENCE: Duration = Duration::from_secs(10);

    fn locks() -> Locks {
        MemoryConfig::new().clock(Clock::tokio()).connect().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn two_tasks_of_one_owner_acquire_the_lock_once() {
        let locks = locks();
        let held = locks.mutex("a").acquire().await.unwrap();
        let owner = Reentrant::new(&locks.mutex("a"));
        let tasks = [(); 2].map(|()| {
            let owner = owner.clone();
            tokio::spawn(async move { owner.acquire().await.unwrap() })
        });
        yield_now().await;
        assert!(owner.try_acquire().await.unwrap().is_none(), "its other task waits");
        assert!(owner.try_acquire_for(Duration::from_secs(1)).await.unwrap().is_none());
        held.release().await.unwrap();
        let mut guards = Vec::new();
        for task in tasks {
            guards.push(timeout(PATIENCE, task).await.unwrap().unwrap());
        }
        assert_eq!((guards[0].token(), guards[0].depth()), (guards[1].token(), 2));
        drop(guards);
        assert!(timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_gives_up_lets_the_next_task_of_its_owner_ask() {
        let locks = locks();
        let held = locks.mutex("a").acquire().await.unwrap();
        let owner = Reentrant::new(&locks.mutex("a"));
        let [first, second] = [(); 2].map(|()| {
            let owner = owner.clone();
            tokio::spawn(async move { owner.acquire().await.unwrap() })
        });
        yield_now().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        held.release().await.unwrap();
        let guard = timeout(PATIENCE, second).await.unwrap().unwrap();
        assert_eq!(guard.depth(), 1);
        // A nested acquisition that is dropped takes nothing away.
        drop(owner.acquire());
        assert!(guard.is_valid() && guard.depth() == 1);
        assert_eq!(guard.release().await.unwrap(), Some(Released::Released));
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_whose_locks_are_closed_waits_for_no_task_of_its_own() {
        let locks = locks();
        let owner = Reentrant::new(&locks.mutex("a"));
        let held = locks.mutex("a").acquire().await.unwrap();
        let mut unpolled = Box::pin(owner.acquire());
        assert!(futures_util::poll!(&mut unpolled).is_pending());
        let patient = Instant::now() + 10 * PATIENCE;
        let (acquired, tried) = (owner.clone(), owner.clone());
        let waiters = [
            tokio::spawn(async move { acquired.acquire().await.map(drop) }),
            tokio::spawn(async move { tried.try_acquire_until(patient).await.map(drop) }),
        ];
        yield_now().await;
        locks.close().await.unwrap();
        for waiter in waiters {
            let ended = timeout(PATIENCE, waiter).await.expect("it is closed").unwrap();
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        }
        drop((unpolled, held));
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_lost_the_lock_acquires_nothing_until_its_guards_end() {
        let locks = locks();
        let owner = Reentrant::new(&locks.mutex("a"));
        let (outer, inner) = (owner.acquire().await.unwrap(), owner.acquire().await.unwrap());
        let token = outer.token();
        assert!(locks.break_lock("a").await.unwrap());
        assert!(!outer.is_valid() && !inner.is_valid());
        for refused in [owner.acquire().await.map(Some), owner.try_acquire().await] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Lost);
        }
        drop(outer);
        assert_eq!(owner.acquire().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(inner.release().await.unwrap(), Some(Released::AlreadyLost));
        assert!(owner.acquire().await.unwrap().token() > token);
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_acquires_again_while_its_dropped_guard_is_released() {
        let locks = locks();
        let owner = Reentrant::new(&locks.mutex("a"));
        for _ in 0..3 {
            drop(timeout(PATIENCE, owner.acquire()).await.unwrap().unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_chain_has_one_owner_for_each_lock() {
        let locks = locks();
        let of = |name: &str| Reentrant::of_call_chain(&locks.mutex(name));
        assert_eq!(of("a").unwrap_err().kind(), ErrorKind::Unsupported);
        let chain = async {
            let outer = of("a").unwrap().acquire().await.unwrap();
            let other = timeout(PATIENCE, of("b").unwrap().acquire()).await.unwrap().unwrap();
            let inner = Reentrant::call_chain(async { of("a").unwrap().acquire().await.unwrap() });
            let inner = timeout(PATIENCE, inner).await.expect("it nests");
            assert_eq!((outer.depth(), inner.depth(), other.depth()), (2, 2, 1));
            assert_eq!(of("").unwrap_err().kind(), ErrorKind::InvalidName);
            // Another call chain is another owner.
            let locks = locks.clone();
            let apart = tokio::spawn(Reentrant::call_chain(async move {
                Reentrant::of_call_chain(&locks.mutex("a")).unwrap().try_acquire().await.unwrap()
            }));
            assert!(apart.await.unwrap().is_none());
        };
        Reentrant::call_chain(chain).await;
    }
}
