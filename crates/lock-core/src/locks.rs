//! The entry: a store, and the locks in it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::background::Background;
use crate::guard::Origin;
use crate::queue::LocalQueue;
use crate::runtime::Runtimes;
use crate::{
    Backend, Capabilities, Error, ErrorKind, LockName, LockOptions, Mutex, OwnerInfo, Report, Result, RwLock,
    Semaphore, Token,
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

/// How long [`Locks::close`] waits for the releases of dropped guards.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// What [`Locks::inspect`] saw. It may have changed by the time that you read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// Who holds the lock, `None` when it is free. When several share it, one of them, where the store
    /// knows who they are; the memory backend shows the one that has had it for longest.
    pub holder: Option<Holder>,
    /// Since when that one holds it, where the store keeps it: by the server's clock, or by the holder's where there are
    /// several servers.
    pub since: Option<SystemTime>,
    /// How many wait: the processes that the backend counts, and the tasks of this one.
    pub waiters: usize,
    /// The fencing token of that holder, or the last one that was granted; `None` if there was none, or where the store
    /// does not tell. On Redlock perhaps a larger one, which one who asked meanwhile has proposed.
    pub token: Option<Token>,
    /// What each of several independent servers sees, where a quorum of them keeps the lock; empty elsewhere.
    pub servers: Vec<ServerView>,
}

/// What one of several servers sees of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerView {
    /// The server, as host and port.
    pub server: String,
    /// What it sees.
    pub view: View,
}

impl ServerView {
    /// What this server sees.
    #[must_use]
    pub fn new(server: impl Into<String>, view: View) -> Self {
        Self { server: server.into(), view }
    }
}

/// What a server sees of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum View {
    /// The lock is free.
    Free,
    /// It is held.
    Held(Holder),
    /// The server did not say; the text tells why.
    Unknown(String),
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A process that uses this library.
    Known(OwnerInfo),
    /// Another client; the text says what the store holds.
    Foreign(String),
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(owner) => owner.fmt(f),
            Self::Foreign(text) => f.write_str(text),
        }
    }
}

impl LockState {
    /// A free lock.
    #[must_use]
    pub fn free() -> Self {
        Self::default()
    }

    /// A lock that is held.
    #[must_use]
    pub fn held(holder: Holder) -> Self {
        Self { holder: Some(holder), ..Self::default() }
    }

    /// Whether somebody holds the lock.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.holder.is_some()
    }
}

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

    /// Looks at a lock without touching it.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
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
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server does not answer,
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
    pub async fn doctor(&self) -> Result<Report> {
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

    /// Waits for the releases of dropped guards, then ends the connections: the last call of a `main`.
    ///
    /// It waits for 5 s at most, as a server may not answer. Locks whose guards still live end as their leases or sessions
    /// do: a session at once, a lease when its time is over. Later calls fail with
    /// [`Closed`](crate::ErrorKind::Closed), those of all clones as well.
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
    /// not answer the farewell. The connections are closed all the same.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the connections may stay open until the last clone is dropped.
    pub async fn close(&self) -> Result<()> {
        let closed = self.shared.ask(|backend| async {
            let left = self.shared.origin.releases.settle(CLOSE_PATIENCE).await;
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
