//! The store as a backend: connect, close, and the calls of the others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{
    AcquireRequest, Acquired, Backend, Capabilities, DoctorReport, Error, LockName, LockState, Result, Token,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::FlockConfig;
use crate::acquire::acquire;
use crate::directory::Directory;
use crate::doctor;
use crate::error::{BACKEND, no_thread};
use crate::file_name::Paths;
use crate::inspect;
use crate::lease::{FlockLease, Keepers};
use crate::watches::Watches;

/// How long `close` waits for the tasks that look after held locks: they only have to unlock their files.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// The flock backend: locks between the processes of one host, which the kernel keeps.
///
/// * **A crash frees the lock at once.** The kernel unlocks the files of a process when it ends, however it ends.
/// * **Tokens** are counted in a file beside the lock, written to the disk before the grant, and are no smaller than the clock
///   in microseconds. So they grow through crashes and reboots, and also after the files were deleted, unless the clock was
///   set back then.
/// * **Waiters** of one process wait in order; processes do not. On Linux the kernel notifies a waiter when a file is closed,
///   elsewhere it looks 20 times a second. Readers and writers do not starve each other.
/// * **Modes**: mutexes and read/write locks; no semaphores.
/// * **Other programs** of its users can lock the same file: `flock /var/lock/app/report.lock ./report.sh` excludes `locks.mutex("report")`.
///   They get no token.
/// * **Users.** Files are made for one user ([`FlockConfig::mode`]).
///
/// # Several users
///
/// Users that share locks have a group in common, and all their processes the URL `flock:///var/lib/app/locks?mode=0660&group=app`.
/// The first acquisition makes the directory, if its user may do that. An administrator can make it beforehand:
///
/// ```text
/// install -d -m 2770 -g app /var/lib/app/locks
/// ```
///
/// Each of them can keep a lock from the others, and break it: the group is one that trusts each other. Who only looks
/// (`polylock holders`) needs the right to read, as with `mode=0640`; that is enough to keep a lock from everybody as well.
///
/// # What it does not do
///
/// * **Hosts.** On NFS and other network file systems, `flock` may be local to each host, or need a lock server; use a local
///   directory. Containers exclude each other if they mount the same directory.
/// * **Paused holders.** A process that is stopped keeps its lock: nobody follows it until it ends. When it continues after a
///   session timeout, its guard is lost, as an operator may have broken the lock meanwhile.
/// * **Deleted files.** Whoever deletes the lock file breaks the lock. Its holder notices at the next look, within a third of
///   the session timeout. Keep the directory away from programs that delete old files, as those for `/tmp` do.
/// * **Forked children.** Programs that the holder starts do not inherit the lock. A child after `fork` without `exec` does: if the
///   holder crashes, the lock is free when the child has ended too.
///
/// # Examples
///
/// ```
/// # use lock_core::Locks;
/// # use lock_flock::{Flock, FlockConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let dir = dir.path();
/// let (one, two) = (Flock::connect(FlockConfig::new(dir)).await?, Flock::connect(FlockConfig::new(dir)).await?);
/// let (one, two) = (Locks::new(one), Locks::new(two));
/// let guard = one.mutex("orders/42").acquire().await?;
/// assert!(two.mutex("orders/42").try_acquire().await?.is_none());
/// # drop(guard);
/// # one.close().await
/// # }
/// ```
#[derive(Debug)]
pub struct Flock {
    dir: Arc<Directory>,
    capabilities: Capabilities,
    /// The steps on files that are running, each in a thread.
    steps: TaskTracker,
    watches: Watches,
    keepers: Keepers,
    closed: CancellationToken,
}

impl Flock {
    /// Connects, and makes nothing: the first acquisition makes the directory. `doctor` finds out whether files can be locked there.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](lock_core::ErrorKind::InvalidConfig) for a session timeout that is too short or too long, an invalid
    /// mode and an unknown group, [`Denied`](lock_core::ErrorKind::Denied) without the right to look there,
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) for a path that leads to something else,
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub async fn connect(config: FlockConfig) -> Result<Self> {
        let capabilities = config.capabilities()?;
        lock_core::runtime::current(BACKEND)?;
        let (steps, closed) = (TaskTracker::new(), CancellationToken::new());
        let keepers = Keepers::new(config.session_timeout, steps.clone(), closed.clone());
        let dir = steps.spawn_blocking(move || Directory::new(&config)).await.map_err(no_thread)??;
        Ok(Self { dir: Arc::new(dir), capabilities, steps, watches: Watches::default(), keepers, closed })
    }

    fn paths(&self, name: &LockName) -> Paths {
        Paths::new(&self.dir, name)
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() { Err(Error::closed(BACKEND)) } else { Ok(()) }
    }

    /// Takes a step in a thread of its own: the disk may be slow. It runs to its end when the future is dropped.
    async fn step<T: Send + 'static>(&self, step: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.check_open()?;
        self.steps.spawn_blocking(step).await.map_err(no_thread)?
    }
}

#[async_trait]
impl Backend for Flock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: AcquireRequest) -> Result<Acquired> {
        self.check_open()?;
        self.capabilities.check_mode(request.mode)?;
        let paths = self.paths(&request.name);
        let acquired = acquire(&request, paths.clone(), &self.steps, &self.watches, &self.closed).await?;
        let Some(grant) = acquired else { return Ok(Acquired::Busy) };
        let lease = FlockLease::new(grant, paths, request.lease, &self.keepers, &self.capabilities);
        Ok(Acquired::Held(Box::new(lease)))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let paths = self.paths(name);
        self.step(move || inspect::inspect(&paths)).await
    }

    async fn break_lock(&self, name: &LockName) -> Result<bool> {
        let paths = self.paths(name);
        self.step(move || inspect::break_lock(&paths)).await
    }

    async fn break_lock_if(&self, name: &LockName, token: Token) -> Result<bool> {
        let paths = self.paths(name);
        self.step(move || inspect::break_lock_if(&paths, token)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockName>> {
        let (dir, prefix) = (Arc::clone(&self.dir), prefix.to_owned());
        let names = self.step(move || inspect::list(dir.path(), &prefix)).await?;
        self.capabilities.check_listed(names.len()).map(|()| names)
    }

    async fn doctor(&self) -> Result<DoctorReport> {
        let dir = Arc::clone(&self.dir);
        self.step(move || doctor::doctor(&dir)).await
    }

    async fn settle(&self) {
        // A closed tracker still accepts tasks.
        self.steps.close();
        self.steps.wait().await;
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        // Those of a runtime that is paused unlock their files when it continues, or ends.
        let _ = timeout(CLOSE_PATIENCE, self.keepers.ended()).await;
        Ok(())
    }
}
