//! The options of a lock.

use std::time::Duration;

use crate::{LeasePolicy, OnQueued};

/// The options of a lock of any kind.
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::LockOptions;
/// let options = LockOptions::new().ttl(Duration::from_secs(10)).label("nightly report");
/// ```
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    pub(crate) lease: LeasePolicy,
    pub(crate) label: Option<String>,
    pub(crate) on_queued: Option<OnQueued>,
}

impl LockOptions {
    /// The defaults: the backend's own time to live, renewed for as long as the guard lives.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time to live: the lock ends at most `ttl` after its holder died, on every backend.
    ///
    /// * A lease (`redis://`, `redlock://`, `memory://`) is renewed at a third of it while the guard lives.
    /// * A session (`zk://`) lasts for its own timeout after the process died, so that it keeps every `ttl` of at least
    ///   the session timeout. A shorter one is refused with [`InvalidConfig`](crate::ErrorKind::InvalidConfig), and the
    ///   error names the option of the URL that allows it (`session_timeout=...`).
    ///
    /// The servers of an ensemble end sessions at their ticks: allow one more (`tickTime`, 2 s by default).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, Locks, Memory, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = Locks::new(Memory::open(MemoryConfig::new())?);
    /// // The same line for every URL, such as zk://host/?session_timeout=10s.
    /// let report = locks.mutex_with("report", LockOptions::new().ttl(Duration::from_secs(10)))?;
    /// let guard = report.acquire().await?;
    /// // The lock lasts for as long as the guard lives, and for 10 s if this process dies.
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease.ttl = Some(ttl);
        self
    }

    /// Limits the lock to `ttl` after the grant, unless the guard is [extended](crate::Guard::extend).
    ///
    /// At that time the guard is lost, and the lock ends though its holder lives. A lease is not renewed and ends by
    /// itself. Where a session keeps the lock (`zk://`), the library deletes it in the background, again and again until
    /// the servers confirm it; a process that has died by then, or is cut off, leaves it to the end of its session. So
    /// here too the lock ends at most `ttl` after its holder died, and a `ttl` below the session timeout is refused as
    /// for [`ttl`](Self::ttl).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, Locks, LossReason, Memory, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = Locks::new(Memory::open(MemoryConfig::new())?);
    /// let ttl = Duration::from_millis(100);
    /// let guard = locks.mutex_with("import", LockOptions::new().fixed_ttl(ttl))?.acquire().await?;
    /// assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fixed_ttl(mut self, ttl: Duration) -> Self {
        (self.lease.ttl, self.lease.renewed) = (Some(ttl), false);
        self
    }

    /// The longest time that one guard may hold the lock; it is lost then, though its holder lives.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.lease.max_hold = Some(max_hold);
        self
    }

    /// A text that [`Locks::inspect`](crate::Locks::inspect) shows with the holder.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Is called with the number of those who are before us in the queue of the server, whenever it
    /// becomes known while we wait; a backend that keeps no such queue never calls it. Must not block.
    ///
    /// Of the tasks of one process that wait for one lock, only the first stands in that queue.
    #[must_use]
    pub fn on_queued(mut self, told: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.on_queued = Some(OnQueued::new(told));
        self
    }
}
