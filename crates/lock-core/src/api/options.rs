//! The options of a lock.

use std::time::Duration;

use crate::process::persistence::OnRefused;
use crate::{Error, LeasePolicy, OnQueued, Persistence};

/// The options of a lock of any kind.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::LockOptions;
/// let options = LockOptions::new().ttl(Duration::from_secs(10)).label("nightly report");
/// ```
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    pub(crate) lease: LeasePolicy,
    pub(crate) hold_at_least: Option<Duration>,
    pub(crate) label: Option<String>,
    pub(crate) on_queued: Option<OnQueued>,
    /// By default as for the kind of lock.
    pub(crate) persistence: Option<Persistence>,
    pub(crate) on_refused: Option<OnRefused>,
}

impl LockOptions {
    /// The defaults: the backend's own time to live, renewed for as long as the guard lives.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time to live: the longest time that the lock lasts after its holder died.
    ///
    /// * A lease is renewed at a third of it while the guard lives, and expires by itself.
    /// * On stores without a clock (`etcd://`, `mysql://`, `s3://`, and those of your own) that time begins when the first
    ///   process waits for the lock. A process that only [tries](crate::Mutex::try_acquire) finds it busy until another one
    ///   has waited, or an operator [breaks](crate::Locks::break_lock) it.
    /// * A session (`zk://`) ends at most its own timeout after the process died, so a `ttl` of at least the session
    ///   timeout is kept. A shorter one is refused with [`InvalidConfig`](crate::ErrorKind::InvalidConfig), and the error
    ///   names the URL option that allows it (`session_timeout=...`). An ensemble ends sessions at its ticks: allow one
    ///   more (`tickTime`, 2 s by default).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// // The same line for every URL, such as zk://host/?session_timeout=10s.
    /// let report = locks.mutex_with("report", LockOptions::new().ttl(Duration::from_secs(10)))?;
    /// let guard = report.acquire().await?;
    /// // The lock lasts while the guard lives, and at most 10 s longer if this process dies.
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
    /// Then the guard is lost and the lock ends, though its holder lives. A lease is not renewed, and expires. Where a
    /// session keeps the lock (`zk://`), the library deletes it in the background, and repeats that until the servers
    /// confirm it. If the process is dead or disconnected by then, the lock ends with the session. So here too the lock
    /// ends at most `ttl` after its holder died, and a `ttl` below the session timeout is refused as for
    /// [`ttl`](Self::ttl).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, LossReason, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
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

    /// The longest time that one guard may hold the lock. Then the guard is lost, though its holder lives.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.lease.max_hold = Some(max_hold);
        self
    }

    /// The shortest time that the lock is held, from its grant, whatever becomes of its holder: for a job that many hosts
    /// start at the same time of day, by clocks that differ, and that one of them should do.
    ///
    /// A guard that is released or dropped earlier leaves the lock to its time to live, which the server counts: no process
    /// has to stay for it. [`Locks::inspect`](crate::Locks::inspect) shows it as held until then, and a waiter waits for
    /// it. If the holder crashes, its lock lasts for the [time to live](Self::ttl), which is at least as long; see there for stores
    /// without a clock. An acquisition costs one round trip more, in which the server confirms that. A wait goes on when it does not.
    ///
    /// * Choose it longer than the clocks of the hosts differ, and shorter than the time between two starts.
    /// * [`Locks::break_lock`](crate::Locks::break_lock) ends the lock earlier.
    /// * On `redlock://` it is `longest_ttl` at most, as for any time to live.
    /// * With `recipe=setnx-timestamp` the clocks of the clients count: a lock may end `clock_skew` earlier.
    /// * Where a session or the kernel keeps the lock (`zk://`, `migrate://`, `flock://`), nothing lasts without its process: the
    ///   option is refused with [`Unsupported`](crate::ErrorKind::Unsupported).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::{LockOptions, MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// // Each host runs this at 3:00 by its own clock.
    /// let report = locks.mutex_with("report", LockOptions::new().hold_at_least(Duration::from_secs(300)))?;
    /// if let Some(guard) = report.try_acquire().await? {
    ///     guard.run(async { /* the report, done in no time */ }).await?;
    ///     guard.release().await?;
    /// }
    /// assert!(report.try_acquire().await?.is_none()); // a host whose clock is behind
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Source of the idea: `lockAtLeastFor` of ShedLock.
    #[must_use]
    pub fn hold_at_least(mut self, hold: Duration) -> Self {
        self.hold_at_least = Some(hold);
        self
    }

    /// A text about the holder, which [`Locks::inspect`](crate::Locks::inspect) shows: at most
    /// [`OwnerInfo::MAX_LABEL_BYTES`](crate::OwnerInfo::MAX_LABEL_BYTES), else the lock is refused as
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// A callback for the position in the wait queue of the server: it gets the number of acquisitions ahead, whenever
    /// that becomes known during a wait. It must not block. Backends without such a queue never call it.
    ///
    /// Of the waiting tasks of one process, only the first is in that queue.
    #[must_use]
    pub fn on_queued(mut self, callback: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.on_queued = Some(OnQueued::new(callback));
        self
    }

    /// Whether an acquisition goes on when the store refuses it: see [`Persistence`]. An [`Observer`](crate::Observer) of an
    /// election that is [`Strict`](Persistence::Strict) ends at the first error.
    #[must_use]
    pub const fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = Some(persistence);
        self
    }

    /// A callback for an acquisition that goes on although the store refuses it: it gets the error, once per outage and reason.
    /// It must not block.
    ///
    /// Of the waiting tasks of one process, only the first talks to the store.
    #[must_use]
    pub fn on_refused(mut self, callback: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_refused = Some(OnRefused::new(callback));
        self
    }
}
