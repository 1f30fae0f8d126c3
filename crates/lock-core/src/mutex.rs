//! An exclusive lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::locks::Shared;
use crate::{
    AcquireRequest, Acquired, Error, ErrorKind, Guard, LeasePolicy, LockName, OwnerInfo, Result, Wait,
};

/// An exclusive lock: at most one holder at a time, over all processes that use the same store.
///
/// Made by [`Locks::mutex`](crate::Locks::mutex). It is a handle and holds nothing itself: clone it
/// freely, acquire it as often as you like. Tasks of one process get the lock in the order in which
/// they asked; only the first of them talks to the server.
///
/// It is not re-entrant: a task that acquires a lock that it holds waits for itself.
#[derive(Clone, Debug)]
pub struct Mutex {
    shared: Arc<Shared>,
    spec: Result<Spec>,
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    name: LockName,
    lease: LeasePolicy,
    owner: Arc<OwnerInfo>,
}

/// The options of a [`Mutex`].
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::MutexOptions;
/// let options = MutexOptions::new().ttl(Duration::from_secs(10)).label("nightly report");
/// ```
#[derive(Clone, Debug, Default)]
pub struct MutexOptions {
    lease: LeasePolicy,
    label: Option<String>,
}

impl MutexOptions {
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
    /// [extended](Guard::extend).
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
}

impl Mutex {
    pub(crate) fn new(shared: Arc<Shared>, name: &str, options: MutexOptions) -> Self {
        let spec = Spec::new(&shared, name, options);
        Self { shared, spec }
    }

    /// Why this lock can never be acquired, if so.
    pub(crate) fn check(self) -> Result<Self> {
        self.spec.as_ref().map_err(Clone::clone)?;
        Ok(self)
    }

    /// Takes the lock, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the server does not answer, or stops answering for longer than
    /// a lease or session lasts; [`ErrorKind::InvalidName`] when the name is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue and leaves nothing behind: if the lock had
    /// been granted already, it is released in the background.
    pub async fn acquire(&self) -> Result<Guard> {
        match self.acquire_within(Wait::Forever).await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Unexpected, self.shared.backend_name())
                .message("the backend gave up a wait without a deadline")
                .during("acquire")),
        }
    }

    /// Takes the lock if it is free: `None` when somebody holds it or waits for it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Never).await
    }

    /// Takes the lock, waiting for `patience` at most: `None` when it is not ours by then.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        let wait = Instant::now().checked_add(patience).map_or(Wait::Forever, Wait::Until);
        self.acquire_within(wait).await
    }

    /// Takes the lock, waiting until `deadline` at most: `None` when it is not ours by then. A deadline
    /// that has passed asks once.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.acquire_within(Wait::Until(deadline)).await
    }

    async fn acquire_within(&self, wait: Wait) -> Result<Option<Guard>> {
        let spec = self.spec.as_ref().map_err(Clone::clone)?;
        self.shared.take(spec, wait).await.map_err(|error| error.during("acquire").on(&spec.name))
    }
}

impl Spec {
    fn new(shared: &Shared, name: &str, options: MutexOptions) -> Result<Self> {
        let name = LockName::new(name)?;
        shared.backend.capabilities().check(options.lease).map_err(|error| error.on(&name))?;
        let owner = match options.label {
            Some(label) => Arc::new(OwnerInfo::clone(&shared.owner).with_label(label)),
            None => Arc::clone(&shared.owner),
        };
        Ok(Self { name, lease: options.lease, owner })
    }
}

impl Shared {
    async fn take(&self, spec: &Spec, wait: Wait) -> Result<Option<Guard>> {
        let runtime = Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Unsupported, self.backend_name())
                .message("there is no tokio runtime here")
                .hint("acquire locks inside a tokio runtime")
                .caused_by(error)
        })?;
        let turn = match wait {
            Wait::Forever => Some(self.queue.turn(&spec.name).await),
            Wait::Never => self.queue.try_turn(&spec.name),
            Wait::Until(deadline) => timeout_at(deadline, self.queue.turn(&spec.name)).await.ok(),
        };
        let Some(mut turn) = turn else { return Ok(None) };
        let request = AcquireRequest::exclusive(spec.name.clone(), wait, spec.lease, Arc::clone(&spec.owner));
        match self.backend.acquire(request).await? {
            Acquired::Busy => Ok(None),
            Acquired::Held(lease) => {
                turn.hold(lease.validity());
                Ok(Some(Guard::new(lease, turn, spec.name.clone(), self.backend_name(), runtime)))
            }
        }
    }
}
