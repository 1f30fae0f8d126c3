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

    /// How long the lock outlives a holder that died. Renewed at a third of it.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lease.ttl = Some(ttl);
        self
    }

    /// Never renew: the lock ends `ttl` after it was acquired, unless the guard is
    /// [extended](crate::Guard::extend).
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
