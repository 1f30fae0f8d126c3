//! An exclusive lock.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::api::handle::{LockHandle, LockKey};
use crate::api::run::run_and_release;
use crate::process::connection::Connection;
use crate::process::tasks::background::Counted;
use crate::{Error, Guard, GuardView, LockOptions, LockState, Mode, Result, RunError, Wait};

/// An exclusive lock: at most one holder at a time, over all processes that use the same store.
///
/// Made by [`Locks::mutex`](crate::Locks::mutex). It is a handle and holds nothing itself: clone it
/// freely, acquire it as often as you like. Tasks of one process get the lock in the order of their
/// calls; only the first of them talks to the server.
///
/// The [`RwLock`](crate::RwLock) and the [`Semaphore`](crate::Semaphore) of the same name are the same
/// lock: the holder of the mutex excludes their holders.
///
/// It is not re-entrant: a task that acquires a lock that it holds waits for itself. [`Reentrant`](crate::Reentrant) is an
/// owner that may.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> lock_core::Result<()> {
/// # let locks = lock_core::MemoryConfig::new().connect()?;
/// let order = locks.mutex("orders/42");
/// let guard = order.acquire().await?;
/// assert!(order.try_acquire_for(Duration::from_millis(10)).await?.is_none());
/// guard.release().await?;
/// assert!(order.try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    handle: LockHandle,
}

impl Mutex {
    pub(crate) fn new(connection: Arc<Connection>, name: &str, options: &LockOptions) -> Self {
        Self { handle: LockHandle::new(connection, name, Mode::Exclusive, options) }
    }

    /// The same lock, each holder of which gets it from the store, where others can observe it.
    pub(crate) fn observed(self) -> Self {
        Self { handle: self.handle.observed() }
    }

    /// What tells the lock from others in this process.
    pub(crate) fn key(&self) -> Result<LockKey> {
        self.handle.key()
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.handle.backend_name()
    }

    /// The state of the lock in the store.
    pub(crate) async fn inspect(&self) -> Result<LockState> {
        self.handle.inspect().await
    }

    /// Acquires the lock for a caller who [confirms](Guard::confirm_hold) later how long it is to be held.
    pub(crate) async fn acquire_unconfirmed(&self, wait: Wait) -> Result<Option<Guard>> {
        self.handle.acquire_unconfirmed(wait).await
    }

    /// The error of an acquisition, once the locks are closed.
    pub(crate) async fn closed(&self) -> Error {
        self.handle.closed().await
    }

    /// The same; `None` before.
    pub(crate) fn is_closed(&self) -> Option<Error> {
        self.closed().now_or_never()
    }

    /// Counts an acquisition of several as under way: closing waits for it.
    pub(crate) fn under_way(&self) -> Counted {
        self.handle.under_way()
    }

    /// The output of what an acquisition waits for first, or an error once the locks are closed.
    pub(crate) async fn unless_closed<T>(&self, waiting: impl Future<Output = T>) -> Result<T> {
        self.handle.unless_closed(pin!(async { Ok(waiting.await) })).await
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        self.handle.answer_timeout()
    }

    /// Fails if this lock can never be acquired.
    pub(crate) fn check(self) -> Result<Self> {
        self.handle.check().map(|()| self)
    }

    /// Acquires the lock, and waits as long as necessary.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Unavailable`] when the server does not answer.
    /// * [`ErrorKind::InvalidName`] for an invalid name.
    /// * [`ErrorKind::Denied`] when the server refuses the client.
    /// * [`ErrorKind::InvalidConfig`] for a time to live that the backend cannot honour.
    /// * [`ErrorKind::Closed`] once the [locks were closed](crate::Locks::close).
    ///
    /// Once it has queued, a call goes on through what [can pass](crate::Error::can_pass), such as the first and the third: see
    /// [`Persistence`](crate::Persistence).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the wait queue, and nothing behind: if the lock had
    /// been granted already, it is released in the background.
    ///
    /// Poll the future or drop it. One that is kept and not polled, in a `select!` loop for instance, loses after a second
    /// what a task of this process has handed over to it, and its position. If it is the one that waits at the server,
    /// later waiters of this process wait for it; other processes wait for a ttl at most, on ZooKeeper and files for two seconds;
    /// while it [holds the lock for a time](crate::LockOptions::hold_at_least) or has one of the two of a migration, until it is
    /// dropped.
    ///
    /// [`ErrorKind::Unavailable`]: crate::ErrorKind::Unavailable
    /// [`ErrorKind::InvalidName`]: crate::ErrorKind::InvalidName
    /// [`ErrorKind::Denied`]: crate::ErrorKind::Denied
    /// [`ErrorKind::InvalidConfig`]: crate::ErrorKind::InvalidConfig
    /// [`ErrorKind::Closed`]: crate::ErrorKind::Closed
    pub async fn acquire(&self) -> Result<Guard> {
        self.handle.acquire().await
    }

    /// Acquires the lock if it is free; `None` if it is held or has waiters. A server that does not answer is given up after the
    /// [answer timeout](crate::Capabilities::answer_timeout) of the backend.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        self.handle.try_acquire().await
    }

    /// Acquires the lock within `patience`, else returns `None`; the refusal, if the store refused it until then.
    ///
    /// A server that does not answer is given up 100 ms after that, so that a free lock can be acquired with hardly any
    /// patience. The error is [`Unavailable`](crate::ErrorKind::Unavailable) then, with
    /// [`Outcome::Unknown`](crate::Outcome::Unknown): a lock that the server may have granted is released in the background.
    /// `None` means that the lock was busy.
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, patience: Duration) -> Result<Option<Guard>> {
        self.handle.try_acquire_for(patience).await
    }

    /// Acquires the lock before `deadline`, else returns `None`. If the deadline has passed, the server is
    /// still asked once. A server that does not answer is given up as by [`try_acquire_for`](Self::try_acquire_for).
    ///
    /// Errors and cancel safety as for [`acquire`](Self::acquire).
    pub async fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Guard>> {
        self.handle.try_acquire_until(deadline).await
    }

    /// Acquires the lock, runs `body` while it is held, and releases it, however the body ends.
    ///
    /// The body gets a [view](GuardView) of the guard: its token, and its validity for other tasks. As with [`Guard::run`],
    /// the body is dropped when the lock is lost, and `Ok` means that the lock was held until the end of the body. The
    /// release is awaited: another client can have the lock when `run` returns.
    ///
    /// * **The body fails**: what it returns is the output, and the lock is released.
    /// * **The body panics**: the lock is released, then the panic continues.
    /// * **The release is not answered**: that is no error. The body has ended under the lock, and the release is repeated
    ///   in the background, with a warning in the log.
    ///
    /// ```
    /// # use lock_core::{MemoryConfig, Result};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let locks = MemoryConfig::new().connect()?;
    /// let sum = locks.mutex("orders/42").run(|view| async move {
    ///     println!("writing under token {}", view.token());
    ///     40 + 2
    /// }).await?;
    /// assert_eq!(sum, 42);
    /// assert!(locks.mutex("orders/42").try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost before
    /// `body` ended, or was found lost then: [`RunError::into_output`] has what `body` returned in that case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `body` first, and then the guard, which releases the lock in the background. Before the
    /// body has begun, it is as for [`acquire`](Self::acquire).
    ///
    /// Source of the idea: `executeLocked` of Spring Integration's `LockRegistry`.
    pub async fn run<F: Future>(
        &self,
        body: impl FnOnce(GuardView) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        let guard = self.acquire().await.map_err(RunError::not_acquired)?;
        run_and_release(guard, body).await
    }
}
