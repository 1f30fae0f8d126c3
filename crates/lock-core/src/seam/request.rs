//! A request for a lock: its name, mode, wait, lease policy and owner.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{LockName, OwnerInfo};

/// A request for one lock, as [`Backend::acquire`](crate::Backend::acquire) gets it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The name of the lock.
    pub name: LockName,
    /// With which other holders the lock may be shared.
    pub mode: Mode,
    /// How long to wait for the lock.
    pub wait: Wait,
    /// How long the lock lasts without a sign of life from its holder.
    pub lease: LeasePolicy,
    /// The process that makes the request.
    pub owner: Arc<OwnerInfo>,
    /// Whether an exclusive lock is the write side of a read/write lock. It is the same lock as a mutex,
    /// but clients of other libraries may look for it under another name.
    pub writes: bool,
    /// The callback for the position in the wait queue.
    pub on_queued: Option<OnQueued>,
}

impl AcquireRequest {
    /// A request for an exclusive lock.
    #[must_use]
    pub const fn exclusive(name: LockName, wait: Wait, lease: LeasePolicy, owner: Arc<OwnerInfo>) -> Self {
        Self { name, mode: Mode::Exclusive, wait, lease, owner, writes: false, on_queued: None }
    }

    /// The same request in another mode.
    #[must_use]
    pub const fn in_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Reports the caller's position in the wait queue: the number of acquisitions ahead of it.
    pub fn report_position(&self, ahead: usize) {
        if let Some(on_queued) = &self.on_queued {
            on_queued.call(ahead);
        }
    }
}

/// With which other holders a lock may be shared.
///
/// All modes of one name are one lock: a holder in one mode excludes the holders in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// With none: a mutex, or the write side of a read/write lock.
    Exclusive,
    /// With other readers: the read side of a read/write lock.
    Shared,
    /// With other permits, up to `max` holders: a semaphore.
    Permit {
        /// The maximum number of holders, as this caller sees it.
        max: NonZeroU32,
    },
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all.
    Never,
    /// Until this instant. If it has passed, the server is still asked once, as with [`Wait::Never`].
    Until(Instant),
    /// Until the lock is granted.
    Forever,
}

impl Wait {
    /// Whether no time is left.
    #[must_use]
    pub fn is_expired(self) -> bool {
        match self {
            Self::Never => true,
            Self::Until(deadline) => Instant::now() >= deadline,
            Self::Forever => false,
        }
    }

    /// The end of the wait: `None` for no end, now for [`Wait::Never`].
    #[must_use]
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Never => Some(Instant::now()),
            Self::Until(deadline) => Some(deadline),
            Self::Forever => None,
        }
    }

    /// The time left: `None` for no end.
    #[must_use]
    pub fn left(self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// How long a lock lasts without a sign of life from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasePolicy {
    /// The [time to live](crate::LockOptions::ttl): the longest time that the lock lasts after its holder died. `None` for the backend's default.
    pub ttl: Option<Duration>,
    /// Whether the lock lasts while the guard lives: the backend renews the lease, or the session keeps it. If not, it
    /// also expires `ttl` after it was granted or [extended](crate::Lease::extend).
    pub renewed: bool,
    /// The longest total time of a renewed lease.
    pub max_hold: Option<Duration>,
}

impl Default for LeasePolicy {
    fn default() -> Self {
        Self { ttl: None, renewed: true, max_hold: None }
    }
}

/// A callback for the position in the wait queue.
#[derive(Clone)]
pub struct OnQueued(Arc<dyn Fn(usize) + Send + Sync>);

impl OnQueued {
    /// Wraps a function, which gets the number of acquisitions ahead of the caller and must not block.
    pub fn new(callback: impl Fn(usize) + Send + Sync + 'static) -> Self {
        Self(Arc::new(callback))
    }

    /// Calls the function.
    pub fn call(&self, ahead: usize) {
        (self.0)(ahead);
    }
}

impl fmt::Debug for OnQueued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnQueued")
    }
}
