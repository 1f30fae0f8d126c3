//! The entry point: a store, and the locks in it.

use super::runtime::wait;
use super::{Election, Mutex, RwLock, Semaphore};
use crate::{Capabilities, DoctorReport, LockName, LockOptions, LockState, Result, Token};

/// A connection to a store of locks, as the asynchronous [`Locks`](crate::Locks). Clones share it.
///
/// Keep one for the whole process: the threads of one `Locks` wait in a queue of the process, and one of them talks to the
/// server.
///
/// # Examples
///
/// ```
/// # use lock_core::MemoryConfig;
/// # use lock_core::blocking::Locks;
/// # fn main() -> lock_core::Result<()> {
/// let locks = Locks::from(MemoryConfig::new().connect()?);
/// let guard = locks.mutex("orders/42").acquire()?;
/// assert!(locks.mutex("orders/42").try_acquire()?.is_none());
/// guard.release()?;
/// locks.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl Locks {
    /// Connects a configuration that was made in code: `connecting` runs on the runtime of the blocking types, which
    /// drives the connection from then on.
    ///
    /// ```
    /// # use lock_core::MemoryConfig;
    /// # use lock_core::blocking::Locks;
    /// # fn main() -> lock_core::Result<()> {
    /// // With a server: Locks::connect_by(RedisConfig::from_url("redis://host:6379")?.connect())
    /// let locks = Locks::connect_by(async { MemoryConfig::new().connect() })?;
    /// # locks.close()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `connecting`, and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task.
    pub fn connect_by(connecting: impl Future<Output = Result<crate::Locks>>) -> Result<Self> {
        wait("connect", connecting).map(Self)
    }

    /// The exclusive lock of this name; see [`Locks::mutex`](crate::Locks::mutex).
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.0.mutex(name))
    }

    /// The exclusive lock of this name, with options.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::mutex_with`](crate::Locks::mutex_with).
    pub fn mutex_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Mutex> {
        self.0.mutex_with(name, options).map(Mutex::new)
    }

    /// The election of this name; see [`Locks::election`](crate::Locks::election).
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.0.election(name))
    }

    /// The election of this name, with options.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::election_with`](crate::Locks::election_with).
    pub fn election_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<Election> {
        self.0.election_with(name, options).map(Election::new)
    }

    /// The read/write lock of this name; see [`Locks::rw`](crate::Locks::rw).
    #[must_use]
    pub fn rw(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.0.rw(name))
    }

    /// The read/write lock of this name, with options for readers and writers alike.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::rw_with`](crate::Locks::rw_with).
    pub fn rw_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<RwLock> {
        self.0.rw_with(name, options).map(RwLock::new)
    }

    /// The semaphore of this name with `max` permits; see [`Locks::semaphore`](crate::Locks::semaphore).
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, max: u32) -> Semaphore {
        Semaphore::new(self.0.semaphore(name, max))
    }

    /// The semaphore of this name with `max` permits, with options.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::semaphore_with`](crate::Locks::semaphore_with).
    pub fn semaphore_with(&self, name: impl AsRef<str>, max: u32, options: LockOptions) -> Result<Semaphore> {
        self.0.semaphore_with(name, max, options).map(Semaphore::new)
    }

    /// Reads the state of a lock without changing it: its holders and their tokens, its waiters in order.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::inspect`](crate::Locks::inspect), and [`Unsupported`](crate::ErrorKind::Unsupported) inside of a
    /// tokio task, as for all methods below.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        wait("inspect", self.0.inspect(name))
    }

    /// Removes the lock from all its holders, and returns whether there were any: for operators.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::break_lock`](crate::Locks::break_lock).
    pub fn break_lock(&self, name: impl AsRef<str>) -> Result<bool> {
        wait("break", self.0.break_lock(name))
    }

    /// Removes the lock from the holder with this token, if it still holds the lock, and returns whether it did.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::break_lock_if`](crate::Locks::break_lock_if).
    pub fn break_lock_if(&self, name: impl AsRef<str>, token: Token) -> Result<bool> {
        wait("break", self.0.break_lock_if(name, token))
    }

    /// Lists the locks whose names begin with this prefix, sorted by name; see [`Locks::list`](crate::Locks::list).
    ///
    /// # Errors
    ///
    /// Those of [`Locks::list`](crate::Locks::list).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockName>> {
        wait("list", self.0.list(prefix.as_ref()))
    }

    /// Asks all holders to release the lock, and returns whether there were any.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::request_revocation`](crate::Locks::request_revocation).
    pub fn request_revocation(&self, name: impl AsRef<str>) -> Result<bool> {
        wait("request revocation", self.0.request_revocation(name))
    }

    /// Examines the servers: version, role and settings that endanger locks.
    ///
    /// # Errors
    ///
    /// Those of [`Locks::doctor`](crate::Locks::doctor).
    pub fn doctor(&self) -> Result<DoctorReport> {
        wait("doctor", self.0.doctor())
    }

    /// What the backend can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// Closes the connections, after the releases of dropped guards: the last call of a `main`. See
    /// [`Locks::close`](crate::Locks::close). Threads that wait for a lock get [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Errors
    ///
    /// Those of [`Locks::close`](crate::Locks::close).
    pub fn close(&self) -> Result<()> {
        wait("close", self.0.close())
    }
}

/// The blocking side of locks that were connected otherwise: in memory, at their first use, or on a runtime of the program's.
///
/// What connects at its first use is driven by the runtime of the blocking types. What was connected on another runtime is
/// driven by that one, which has to keep running: a `current_thread` runtime outside of its `block_on` gives no answers.
impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}
