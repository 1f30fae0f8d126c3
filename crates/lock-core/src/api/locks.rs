//! The entry point: a store, and the locks in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::process::connection::Connection;
use crate::seam::backend::Layer;
use crate::seam::observe::LockObserver;
use crate::{
    Backend, Capabilities, DoctorReport, Election, Error, ErrorKind, LockName, LockOptions, LockState, Mutex,
    Result, RwLock, Semaphore, Token,
};

/// A connection to a store of locks. Clones share it.
///
/// Keep one for the whole process: the tasks of one `Locks` wait in a queue of the process, and one of them
/// talks to the server.
///
/// # Runtimes
///
/// Several tokio runtimes may use one `Locks`. The one that it was connected on drives all connections and sessions, so connect on
/// one with several threads, which keeps running. (Connections to Redis outlive it, and are opened by the others, if it has ended or
/// has one thread only: one whose thread computes may then cost the others a timeout.) A lease is renewed on the runtime of the task
/// that acquired it, as long as that runtime is driven, and on another one once it has ended. A runtime without timers
/// (`enable_time`) is refused.
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// let locks = MemoryConfig::new().connect()?;
/// let guard = locks.mutex("orders/42").acquire().await?;
/// assert!(locks.mutex("orders/42").try_acquire().await?.is_none());
/// guard.release().await?;
/// locks.close().await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    connection: Arc<Connection>,
}

/// How long [`Locks::close`] waits for the releases of dropped guards and the roll-backs of dropped acquisitions.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits for acquisitions under way. Each is woken and ends, unless nobody polls it any more: longer than until those of
/// several locks are taken back then.
const UNPOLLED: Duration = Duration::from_millis(2_200);

impl Locks {
    /// The locks of this backend.
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        Self::from_dyn(Arc::new(backend))
    }

    /// The locks of a backend that is known only at run time.
    #[must_use]
    pub fn from_dyn(backend: Arc<dyn Backend>) -> Self {
        Self { connection: Arc::new(Connection::new(backend)) }
    }

    /// The same locks with a layer: an observer, or a backend over theirs.
    #[must_use]
    pub fn layer(self, layer: impl Layer) -> Self {
        layer.layer(self)
    }

    /// Locks of a backend that is made over this one, with the same observers: for a [`Layer`].
    ///
    /// They have wait queues of their own: use these locks only, and none that were cloned before. Closing one closes the
    /// connection of both.
    #[must_use]
    pub fn over<B: Backend>(self, wrap: impl FnOnce(Arc<dyn Backend>) -> B) -> Self {
        let backend = Arc::new(wrap(Arc::clone(self.backend())));
        let observers = self.connection.observers.clone();
        Self { connection: Arc::new(Connection { observers, ..Connection::new(backend) }) }
    }

    /// The same locks, with an observer of what happens to those that are acquired by them. Clones from before are not
    /// observed, and share the wait queues.
    #[must_use]
    pub fn observe(self, observer: impl LockObserver) -> Self {
        let observers = self.connection.observers.and(observer);
        Self { connection: Arc::new(Connection { observers, ..Connection::clone(&self.connection) }) }
    }

    /// The exclusive lock of this name, with the backend's defaults. Costs nothing; an invalid name is
    /// reported by the first acquisition.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Arc::clone(&self.connection), name.as_ref(), &LockOptions::new())
    }

    /// The exclusive lock of this name, with options.
    ///
    /// # Errors
    ///
    /// [`InvalidName`](crate::ErrorKind::InvalidName),
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig), or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an option that the backend cannot honour.
    pub fn mutex_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Mutex> {
        Mutex::new(Arc::clone(&self.connection), name.as_ref(), &options).check()
    }

    /// The election of this name, with the backend's defaults. Costs nothing; an invalid name is reported by the first
    /// campaign.
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(Arc::clone(&self.connection), name.as_ref(), LockOptions::new())
    }

    /// The election of this name, with options: the [time to live](LockOptions::ttl) is how long a leader that crashed is
    /// followed by nobody. A [label](LockOptions::label) is replaced by that of each campaign.
    ///
    /// # Errors
    ///
    /// As [`mutex_with`](Self::mutex_with).
    pub fn election_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Election> {
        Election::new(Arc::clone(&self.connection), name.as_ref(), options).check()
    }

    /// The read/write lock of this name, with the backend's defaults. Costs nothing; an invalid name, and
    /// a backend without read/write locks, are reported by the first acquisition.
    #[must_use]
    pub fn rw(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.connection, name.as_ref(), &LockOptions::new())
    }

    /// The read/write lock of this name, with options for readers and writers alike.
    ///
    /// # Errors
    ///
    /// As [`mutex_with`](Self::mutex_with), and [`Unsupported`](crate::ErrorKind::Unsupported) where the
    /// backend has no read/write locks.
    pub fn rw_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<RwLock> {
        RwLock::new(&self.connection, name.as_ref(), &options).check()
    }

    /// The semaphore of this name with `max` permits, with the backend's defaults. Costs nothing; an
    /// invalid name, a `max` of 0, and a backend without semaphores are reported by the first acquisition.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, max: u32) -> Semaphore {
        Semaphore::new(Arc::clone(&self.connection), name.as_ref(), max, &LockOptions::new())
    }

    /// The semaphore of this name with `max` permits, with options.
    ///
    /// # Errors
    ///
    /// As [`mutex_with`](Self::mutex_with), [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when `max`
    /// is 0, and [`Unsupported`](crate::ErrorKind::Unsupported) where the backend has no semaphores.
    pub fn semaphore_with(&self, name: impl AsRef<str>, max: u32, options: LockOptions) -> Result<Semaphore> {
        Semaphore::new(Arc::clone(&self.connection), name.as_ref(), max, &options).check()
    }

    /// Reads the state of a lock without changing it: its holders and their tokens, its waiters in order.
    ///
    /// [`LockState`] lists what each backend shows. It is for people and their tools: a lock that was free may be held by
    /// the time that you read it.
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
        let state = self.connection.request("inspect", Some(&name), |backend| backend.inspect(&name)).await;
        let mut state = state.map_err(|error| error.during("inspect").on(&name))?;
        state.waiters += self.connection.queues.waiters(&name);
        Ok(state)
    }

    /// Removes the lock from all its holders, and returns whether there were any.
    ///
    /// For operators. A holder learns of it by its next renewal or its watch. Until then it goes on working, so two
    /// processes may work at once. On Redis, a lock that is broken within the half millisecond in which it is acquired may
    /// leave that holder a larger token than the next one has.
    ///
    /// # Errors
    ///
    /// * [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer. With
    ///   [`Outcome::Unknown`](crate::Outcome::Unknown) the lock may be broken already, and a second call would break the
    ///   next holder: inspect it first, and use [`break_lock_if`](Self::break_lock_if).
    /// * [`Unsupported`](crate::ErrorKind::Unsupported) when the key is not a lock.
    /// * [`InvalidName`](crate::ErrorKind::InvalidName), [`Denied`](crate::ErrorKind::Denied) and
    ///   [`Closed`](crate::ErrorKind::Closed) as for an acquisition.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not have been broken.
    pub async fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = LockName::new(name)?;
        let broken = self.connection.request("break", Some(&name), |backend| backend.break_lock(&name)).await;
        broken.map_err(|error| error.during("break").on(&name))
    }

    /// Removes the lock from the holder with this token, if it still holds the lock, and returns whether it did.
    ///
    /// A later grant of the store is never affected, and other sharers keep the lock. The tasks of one process that pass the
    /// lock on among themselves share one grant, and the store shows the token of the first: it breaks the lock for whichever
    /// of them has it. For operators. A holder learns of it as with
    /// [`break_lock`](Self::break_lock).
    ///
    /// Use the token that [`inspect`](Self::inspect) shows. It can differ from that of the guard: after
    /// [`raise_token`](crate::Guard::raise_token), and on Redlock where clocks differ. The token of the guard then breaks
    /// nothing, and the call returns `false`.
    ///
    /// On ZooKeeper with `recipe=ephemeral` or `layout=plain`, names of nodes are reused. There the next holder loses the
    /// lock if it acquires it between the last check of the node and its deletion.
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
    /// ([`Capabilities::breaks_one`]), and for one of several sharers on files, where all lose it or nobody does, and on
    /// Redis, unless it was granted last: the store keeps no token of the others. Else as [`break_lock`](Self::break_lock).
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the lock may or may not have been broken.
    pub async fn break_lock_if(&self, name: impl AsRef<str>, token: Token) -> Result<bool> {
        let name = LockName::new(name)?;
        let broken = self
            .connection
            .request("break", Some(&name), |backend| backend.break_lock_if(&name, token))
            .await;
        broken.map_err(|error| error.during("break").on(&name))
    }

    /// Lists the locks whose names begin with this prefix, sorted by name; all locks with an empty prefix.
    ///
    /// It is not a snapshot: a lock that is acquired or released meanwhile may be missing or listed. What counts as a lock
    /// depends on the store; [`inspect`](Self::inspect) shows which are held:
    ///
    /// | store | listed |
    /// |---|---|
    /// | memory | locks that are held |
    /// | Redis, Redlock | every key behind the `prefix` of the URL, those of other programs too |
    /// | ZooKeeper | every directory or node below `dir`, for a while after a release too |
    /// | PostgreSQL, SQLite and other [registers](https://docs.rs/lock-kv) | locks that are held or waited for |
    /// | files | every lock that was acquired in this directory |
    ///
    /// It is expensive, as Redis walks through all keys of the database (`SCAN`, a thousand at a time): for operators, not
    /// for routine use.
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
    /// more than [`MAX_LISTED`](crate::seam::backend::MAX_LISTED) names match;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when a server does not answer,
    /// [`Denied`](crate::ErrorKind::Denied) when it refuses, [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn list(&self, prefix: impl AsRef<str> + Send + Sync) -> Result<Vec<LockName>> {
        let prefix = prefix.as_ref();
        let listed = self.connection.request("list", None, |backend| backend.list(prefix)).await;
        let mut names = listed.map_err(|error| error.during("list"))?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Asks all holders to release the lock, and returns whether there were any.
    ///
    /// A holder is notified by [`Guard::revoke_requested`](crate::Guard::revoke_requested); nothing happens if it
    /// does not check. Later holders are not asked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> lock_core::Result<()> {
    /// # let locks = lock_core::MemoryConfig::new().connect()?;
    /// let guard = locks.mutex("orders/42").acquire().await?;
    /// assert!(locks.request_revocation("orders/42").await?); // by another process
    /// guard.revoke_requested().await;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where the backend cannot notify holders,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the holders may or may not have been asked.
    pub async fn request_revocation(&self, name: impl AsRef<str>) -> Result<bool> {
        let name = LockName::new(name)?;
        let asked = self
            .connection
            .request("request revocation", Some(&name), |backend| backend.request_revocation(&name))
            .await;
        asked.map_err(|error| error.during("request revocation").on(&name))
    }

    /// Examines the servers: version, role and settings that endanger locks. Print the report when a service
    /// starts.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn doctor(&self) -> Result<DoctorReport> {
        let examined = self.connection.request("doctor", None, |backend| backend.doctor()).await;
        examined.map_err(|error| error.during("doctor"))
    }

    #[cfg(test)]
    pub(crate) fn readers(&self) -> &crate::process::readers::Readers {
        &self.connection.origin.readers
    }

    /// What the backend can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.connection.backend.capabilities()
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.connection.backend
    }

    /// Closes the connections, after the releases of dropped guards and the roll-backs of dropped acquisitions: the last
    /// call of a `main`.
    ///
    /// * From the call on, nothing is acquired or observed any more: acquisitions, campaigns and observers under way end with
    ///   [`Closed`](crate::ErrorKind::Closed), and so do later calls, those of all clones too. An acquisition that is kept and
    ///   not polled is taken back all the same; it costs this call two seconds.
    /// * It waits at most 5 s for the releases and roll-backs, as a server may not answer. On ZooKeeper it then waits at most half
    ///   a session timeout for the end of the session, whoever keeps futures of it.
    /// * Locks whose guards still live end with their leases or sessions: a lease when it expires, a session at once,
    ///   unless other `Locks` of the process share it. Extensions fail while the lease lasts.
    ///
    /// ```
    /// # use lock_core::MemoryConfig;
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
    /// not confirm the end of the session. The connections are closed all the same: a second call returns `Ok` and
    /// releases nothing more.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections may stay open until the last clone is dropped. The locks are closed all the
    /// same.
    pub async fn close(&self) -> Result<()> {
        let closed = self.close_backend().await;
        closed.map_err(|error| self.connection.origin.runtimes.explain(error).during("close"))
    }

    async fn close_backend(&self) -> Result<()> {
        let (backend, origin) = (self.backend(), &self.connection.origin);
        origin.runtimes.enter()?;
        let patience = Instant::now() + CLOSE_PATIENCE;
        origin.closed.cancel();
        // In this order: acquisitions that end may start releases, and these may start roll-backs.
        origin.acquisitions.settle(UNPOLLED).await;
        let left = origin.releases.settle(patience.saturating_duration_since(Instant::now())).await;
        // What is not removed in time expires.
        let _ = timeout_at(patience, backend.settle()).await;
        backend.close().await?;
        self.all_released(left)
    }

    fn all_released(&self, left: usize) -> Result<()> {
        if left == 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, self.connection.backend_name())
            .with_message(format!("{left} dropped guards could not be released within {CLOSE_PATIENCE:?}"))
            .with_hint("their locks end with their leases or session; check the server, and the runtime of the guards"))
    }
}
