//! The entry: a store, and the locks in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::background::Background;
use crate::guard::Origin;
use crate::queue::LocalQueue;
use crate::runtime::Runtimes;
use crate::{
    Backend, Capabilities, DoctorReport, Error, ErrorKind, LockName, LockOptions, LockState, Mutex,
    OwnerInfo, Result, RwLock, Semaphore, Token,
};

/// A connection to a store of locks. Clones share it.
///
/// Keep one for the whole process: the tasks of one `Locks` queue up among themselves before they
/// bother the server.
#[derive(Clone, Debug)]
pub struct Locks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) queue: Arc<LocalQueue>,
    pub(crate) owner: Arc<OwnerInfo>,
    pub(crate) origin: Arc<Origin>,
}

/// How long [`Locks::close`] waits for the releases of dropped guards and the roll-backs of dropped acquisitions.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

impl Locks {
    /// The locks of this backend.
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        Self::from_dyn(Arc::new(backend))
    }

    /// The locks of a backend that is known only at run time.
    #[must_use]
    pub fn from_dyn(backend: Arc<dyn Backend>) -> Self {
        let (queue, owner) = (Arc::default(), Arc::new(OwnerInfo::this_process()));
        let runtimes = Runtimes::new(backend.capabilities().backend);
        let origin = Arc::new(Origin { runtimes, releases: Background::default() });
        Self { shared: Arc::new(Shared { backend, queue, owner, origin }) }
    }

    /// The exclusive lock of this name, with the backend's defaults. Costs nothing; a name that is
    /// not valid is told by the first acquisition.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Arc::clone(&self.shared), name.as_ref(), &LockOptions::new())
    }

    /// The exclusive lock of this name, with options.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an option that the backend cannot honour.
    pub fn mutex_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Mutex> {
        Mutex::new(Arc::clone(&self.shared), name.as_ref(), &options).check()
    }

    /// The read/write lock of this name, with the backend's defaults. Costs nothing; a name that is not
    /// valid, and a backend without read/write locks, are told by the first acquisition.
    #[must_use]
    pub fn rw(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.shared, name.as_ref(), &LockOptions::new())
    }

    /// The read/write lock of this name, with options for readers and writers alike.
    ///
    /// # Errors
    ///
    /// As [`mutex_with`](Self::mutex_with), and [`Unsupported`](crate::ErrorKind::Unsupported) where the
    /// backend has no read/write locks.
    pub fn rw_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<RwLock> {
        RwLock::new(&self.shared, name.as_ref(), &options).check()
    }

    /// The semaphore of this name with `max` permits, with the backend's defaults. Costs nothing; a name
    /// that is not valid, a `max` of 0, and a backend without semaphores, are told by the first
    /// acquisition.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, max: u32) -> Semaphore {
        Semaphore::new(Arc::clone(&self.shared), name.as_ref(), max, &LockOptions::new())
    }

    /// The semaphore of this name with `max` permits, with options.
    ///
    /// # Errors
    ///
    /// As [`mutex_with`](Self::mutex_with), [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when `max`
    /// is 0, and [`Unsupported`](crate::ErrorKind::Unsupported) where the backend has no semaphores.
    pub fn semaphore_with(&self, name: impl AsRef<str>, max: u32, options: LockOptions) -> Result<Semaphore> {
        Semaphore::new(Arc::clone(&self.shared), name.as_ref(), max, &options).check()
    }

    /// Looks at a lock without touching it: its holders and their tokens, its waiters in order.
    ///
    /// [`LockState`] tells what each backend shows. It is for people and for programs that help them; a lock that it
    /// shows as free may be held by the time that you read it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = lock_core::MemoryConfig::new().connect()?;
    /// let guard = locks.mutex("orders/42").acquire().await?;
    /// let state = locks.inspect("orders/42").await?;
    /// println!("{state}"); // held by pid 4242 on web-1, exclusive, token 1, since ..., 29s left
    /// assert_eq!(state.holders[0].token, Some(guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer,
    /// [`InvalidName`](crate::ErrorKind::InvalidName), [`Denied`](crate::ErrorKind::Denied) and
    /// [`Closed`](crate::ErrorKind::Closed) as for an acquisition.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        let name = LockName::new(name)?;
        let state = self.shared.ask(|backend| backend.inspect(&name)).await;
        let mut state = state.map_err(|error| error.during("inspect").on(&name))?;
        state.waiters += self.shared.queue.waiters(&name);
        Ok(state)
    }

    /// Takes the lock away from whoever holds it, from all who share it, and says whether somebody did.
    ///
    /// For operators. The holder learns of it with its next renewal or by its watch; until then it
    /// works on, so that two may work at once.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer: with
    /// [`Outcome::Unknown`](crate::Outcome::Unknown) the lock may have been broken, and a second call would break the next
    /// holder, so look first, and use [`break_lock_if`](Self::break_lock_if);
    /// [`Unsupported`](crate::ErrorKind::Unsupported) when the key holds something else than a lock,
    /// [`InvalidName`](crate::ErrorKind::InvalidName), [`Denied`](crate::ErrorKind::Denied) and
    /// [`Closed`](crate::ErrorKind::Closed) as for an acquisition.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not have been broken.
    pub async fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = LockName::new(name)?;
        let broken = self.shared.ask(|backend| backend.break_lock(&name)).await;
        broken.map_err(|error| error.during("break").on(&name))
    }

    /// Takes the lock away from the holder with this token, if it still holds the lock, and says whether it did.
    ///
    /// A later holder is never touched, and others that share the lock keep it. For operators: take the token from
    /// [`inspect`](Self::inspect), and break what you have seen. The holder learns of it as with
    /// [`break_lock`](Self::break_lock); until then it works on, so that two may work at once.
    ///
    /// Use the token that `inspect` shows. After [`raise_token`](crate::Guard::raise_token), and on Redlock where clocks
    /// differ, it can be another than that of the guard; then nothing is broken by the token of the guard, and the answer is
    /// `false`.
    ///
    /// On ZooKeeper with `recipe=ephemeral` or `layout=plain`, the names of nodes come again. There the next holder loses
    /// the lock if it takes it between the last look at the node and its deletion.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = lock_core::MemoryConfig::new().connect()?;
    /// let stuck = locks.mutex("orders/42").acquire().await?;
    /// let state = locks.inspect("orders/42").await?;
    /// let token = state.holders[0].token.expect("this store keeps it");
    /// assert!(locks.break_lock_if("orders/42", token).await?);
    /// let next = locks.mutex("orders/42").acquire().await?;
    /// assert!(!locks.break_lock_if("orders/42", token).await?); // not the next holder
    /// assert!(next.is_valid() && !stuck.is_valid());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot do it
    /// ([`Capabilities::breaks_one`]), and on Redis for a lock that several share, unless the token is the last one:
    /// of the others the store keeps no token. Else as [`break_lock`](Self::break_lock).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not have been broken.
    pub async fn break_lock_if(&self, name: impl AsRef<str>, token: Token) -> Result<bool> {
        let name = LockName::new(name)?;
        let broken = self.shared.ask(|backend| backend.break_lock_if(&name, token)).await;
        broken.map_err(|error| error.during("break").on(&name))
    }

    /// Lists the locks whose names begin with this prefix, in the order of their names; all with an empty prefix.
    ///
    /// It is not a snapshot: a lock that is taken or released meanwhile may be missing or listed. What counts as a lock
    /// depends on the store: in memory what is held; on Redis and Redlock every key behind the `prefix` of the URL,
    /// those of other programs too if they share it; on ZooKeeper every directory or node below `dir`, which stays for a
    /// while after a release. [`inspect`](Self::inspect) tells which are held.
    ///
    /// It costs more than anything else here, as Redis goes through all keys of the database (`SCAN`, a thousand at a
    /// time): it is for operators, not for programs that run all day.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = lock_core::MemoryConfig::new().connect()?;
    /// let one = locks.mutex("orders/1").acquire().await?;
    /// let two = locks.mutex("orders/2").acquire().await?;
    /// let names = locks.list("orders/").await?;
    /// assert_eq!(names.iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["orders/1", "orders/2"]);
    /// for name in names {
    ///     println!("{name}: {}", locks.inspect(&name).await?);
    /// }
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot list ([`Capabilities::listing`]), or when
    /// more than [`MAX_LISTED`](crate::backend::MAX_LISTED) names begin so;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when a server does not answer,
    /// [`Denied`](crate::ErrorKind::Denied) when it refuses, [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn list(&self, prefix: impl AsRef<str> + Send + Sync) -> Result<Vec<LockName>> {
        let prefix = prefix.as_ref();
        let listed = self.shared.ask(|backend| backend.list(prefix)).await;
        let mut names = listed.map_err(|error| error.during("list"))?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Asks whoever holds the lock, all who share it, to give it up, and says whether somebody did hold it.
    ///
    /// It is up to them: [`Guard::revoke_requested`](crate::Guard::revoke_requested) tells them of the wish,
    /// and nothing happens if they do not look. Who comes later is not asked.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend has no way to ask,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the holders may or may not have been asked.
    pub async fn request_revocation(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = LockName::new(name)?;
        let asked = self.shared.ask(|backend| backend.request_revocation(&name)).await;
        asked.map_err(|error| error.during("request revocation").on(&name))
    }

    /// Examines the servers: what they are, and what about them is a danger to locks. Print it when a
    /// service starts.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn doctor(&self) -> Result<DoctorReport> {
        let examined = self.shared.ask(|backend| backend.doctor()).await;
        examined.map_err(|error| error.during("doctor"))
    }

    /// What the backend can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.backend.capabilities()
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// Waits for the releases of dropped guards and the roll-backs of dropped acquisitions, then ends the connections: the
    /// last call of a `main`.
    ///
    /// It waits for them for 5 s at most, as a server may not answer; on ZooKeeper then for the answer to the farewell, for
    /// half a session timeout at most. Locks whose guards still live end as their leases or sessions do: a lease when its
    /// time is over, a session at once, unless other `Locks` of the process share it.
    ///
    /// Later calls fail with [`Closed`](crate::ErrorKind::Closed), those of all clones as well, and so do
    /// acquisitions that wait (in a shared session they wait on). An extension fails with it while the lease lasts.
    ///
    /// ```
    /// # use lock_core::{Locks, Memory, MemoryConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// let locks = MemoryConfig::new().connect()?;
    /// drop(locks.mutex("orders/42").acquire().await?);
    /// locks.close().await // the lock is released by then
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when locks could not be released in time, or when the server does
    /// not answer the farewell. The connections are closed all the same, so that there is nothing to try again: a second
    /// call answers `Ok`, and releases nothing more.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections may stay open until the last clone is dropped.
    pub async fn close(&self) -> Result<()> {
        let closed = self.shared.ask(|backend| async {
            let patience = Instant::now() + CLOSE_PATIENCE;
            let left = self.shared.origin.releases.settle(CLOSE_PATIENCE).await;
            // After the releases, which may leave something to remove. What is not removed by then ends by itself.
            let _ = timeout_at(patience, backend.settle()).await;
            backend.close().await?;
            self.all_released(left)
        });
        closed.await.map_err(|error| error.during("close"))
    }

    fn all_released(&self, left: usize) -> Result<()> {
        if left == 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, self.shared.backend_name())
            .with_message(format!("{left} dropped guards could not be released within {CLOSE_PATIENCE:?}"))
            .with_hint("their locks end with their leases or session; check the server, and the runtime of the guards"))
    }
}

impl Shared {
    /// Asks the backend something on the runtime of the caller.
    async fn ask<'a, T, F>(&'a self, question: impl FnOnce(&'a dyn Backend) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.origin.runtimes.enter()?;
        question(&*self.backend).await.map_err(|error| self.origin.runtimes.explain(error))
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.origin.runtimes.backend()
    }
}
