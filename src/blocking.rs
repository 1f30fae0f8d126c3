//! The same locks for code without a runtime: every method blocks its thread until it has an answer.
//!
//! ```
//! use polylock::Result;
//! use polylock::blocking::Locks;
//!
//! fn main() -> Result<()> {
//!     let locks = Locks::connect("memory://")?; // or redis:// redlock:// zk://
//!     let guard = locks.mutex("orders/42").acquire()?;
//!     guard.run(|| println!("writing under token {}", guard.token()))?;
//!     guard.release()?;
//!     locks.close()
//! }
//! ```
//!
//! [`lock_core::blocking`] says what differs from the asynchronous types, what renews the leases meanwhile, and why a call
//! inside of a tokio task is refused.

use std::ops::Deref;

use lock_core::Result;
pub use lock_core::blocking::{
    Election, Guard, Leadership, Multi, MultiGuard, Mutex, Observer, Reentrant, ReentrantGuard, RwLock,
    Semaphore,
};

/// A connection to a store of locks. It dereferences to [`lock_core::blocking::Locks`], which has the methods.
///
/// Clones share the connection. Keep one for the whole process.
///
/// # Examples
///
/// ```
/// # use polylock::blocking::Locks;
/// # fn main() -> polylock::Result<()> {
/// let locks = Locks::connect("memory://")?; // or redis:// redlock:// zk://
/// let one = locks.mutex("orders/42").acquire()?;
/// let readers = locks.rw("config").read()?;
/// let permit = locks.semaphore("gpu", 2).acquire()?;
/// # drop((one, readers, permit));
/// locks.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(lock_core::blocking::Locks);

impl Locks {
    /// Connects to the store that the URL names: those of [`polylock::Locks::connect`](crate::Locks::connect).
    ///
    /// # Errors
    ///
    /// Those of [`polylock::Locks::connect`](crate::Locks::connect), and
    /// [`Unsupported`](crate::ErrorKind::Unsupported) inside of a tokio task.
    pub fn connect(url: &str) -> Result<Self> {
        let connecting = async { crate::Locks::connect(url).await.map(lock_core::Locks::from) };
        lock_core::blocking::Locks::connect_by(connecting).map(Self)
    }

    /// Connects at the first use: for services that may start before their server. It never blocks.
    ///
    /// # Errors
    ///
    /// Those of [`polylock::Locks::connect_lazy`](crate::Locks::connect_lazy).
    pub fn connect_lazy(url: &str) -> Result<Self> {
        crate::Locks::connect_lazy(url).map(Self::from)
    }
}

impl Deref for Locks {
    type Target = lock_core::blocking::Locks;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The blocking side of locks that were connected otherwise: see [`lock_core::blocking::Locks`].
impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(lock_core::Locks::from(locks).into())
    }
}

/// What was connected from a configuration in code.
impl From<lock_core::blocking::Locks> for Locks {
    fn from(locks: lock_core::blocking::Locks) -> Self {
        Self(locks)
    }
}
