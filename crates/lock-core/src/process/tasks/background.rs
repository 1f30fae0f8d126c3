//! Clean-up that outlives its caller.

mod finish;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::finish::{Begun, Finish};
use crate::{ErrorKind, Released, Result};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// The clean-up tasks of one `Locks` or backend: releases of dropped guards, roll-backs of dropped acquisitions.
///
/// Clones share the tasks. [`settle`](Self::settle) is how `close` waits for them.
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::background::Background;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let background = Background::default();
/// background.spawn(&tokio::runtime::Handle::current(), async { /* removes a key */ });
/// assert_eq!(background.settle(Duration::from_secs(5)).await, 0);
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Background {
    tasks: TaskTracker,
    begun: Arc<Begun>,
}

impl Background {
    /// Runs the clean-up on this runtime. It never blocks, and works from any thread.
    pub fn spawn(&self, runtime: &Handle, cleanup: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(cleanup, runtime));
    }

    /// The output of a clean-up, which goes on whether its caller polls it, drops it or neither: what its caller drops, or what is
    /// not done soon, is done by a task of this runtime, that of the caller. `None` if that runtime was shut down meanwhile.
    ///
    /// # Panics
    ///
    /// When the clean-up does.
    pub fn finish<T: Send + 'static>(
        &self,
        runtime: &Handle,
        cleanup: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> {
        Finish::new(cleanup, &self.begun, &self.tasks, runtime)
    }

    /// Counts a clean-up that runs elsewhere, until the returned value is dropped.
    #[must_use]
    pub fn count(&self) -> Counted {
        Counted(self.tasks.token())
    }

    /// Whether the other one has the same tasks.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        TaskTracker::ptr_eq(&self.tasks, &other.tasks)
    }

    /// The number of clean-ups that are running.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until no clean-up is running.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: the tasks continue when the future is dropped.
    pub async fn settled(&self) {
        // A closed tracker still accepts tasks: those of guards that are dropped after `close`.
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Waits like [`settled`](Self::settled), but at most for this time. Returns how many tasks are left.
    ///
    /// # Cancel safety
    ///
    /// As [`settled`](Self::settled).
    pub async fn settle(&self, patience: Duration) -> usize {
        // The tasks that are left are counted below.
        let _ = timeout(patience, self.settled()).await;
        self.tasks.len()
    }
}

/// A clean-up that counts as running until this is dropped: see [`Background::count`].
#[derive(Debug)]
pub struct Counted(#[allow(dead_code, reason = "it counts until it is dropped")] TaskTrackerToken);

/// Repeats a release until its outcome is known: that of a lease that has ended is, without a request. After
/// [`Closed`](ErrorKind::Closed) the lock ends with its lease or session.
pub async fn until_released<T: Send>(
    held: &mut T,
    release: impl for<'a> Fn(&'a mut T) -> BoxFuture<'a, Result<Released>> + Send,
) {
    let mut pause = FIRST_RETRY;
    while let Err(error) = release(held).await {
        if error.kind() == ErrorKind::Closed {
            tracing::debug!(%error, "the locks were closed: the lock ends with its lease or session");
            return;
        }
        tracing::debug!(%error, "the release failed and is repeated");
        sleep(pause).await;
        pause = (pause * 2).min(LAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn settle_waits_for_tasks_that_end_and_counts_those_that_do_not() {
        let (background, runtime) = (Background::default(), Handle::current());
        background.spawn(&runtime, sleep(PATIENCE / 2));
        assert_eq!(background.settle(PATIENCE).await, 0);
        background.spawn(&runtime, sleep(PATIENCE / 2));
        background.spawn(&runtime, pending());
        assert_eq!(background.settle(PATIENCE).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_runs_elsewhere_counts_until_it_is_dropped() {
        let background = Background::default();
        let counted = background.count();
        assert_eq!(background.settle(PATIENCE).await, 1);
        drop(counted);
        assert_eq!(background.settle(PATIENCE).await, 0);
    }

    #[tokio::test]
    async fn tasks_of_a_runtime_that_was_shut_down_do_not_count() {
        let background = Background::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        background.spawn(runtime.handle(), pending());
        runtime.shutdown_background();
        assert_eq!(background.settle(PATIENCE).await, 0);
    }
}
