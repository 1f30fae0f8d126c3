//! Clean-up that outlives its caller.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

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
pub struct Background(TaskTracker);

impl Background {
    /// Runs the clean-up on this runtime. It never blocks, and works from any thread.
    pub fn spawn(&self, runtime: &Handle, cleanup: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.spawn_on(cleanup, runtime));
    }

    /// Counts this future as a clean-up from now until it has ended or is dropped. Somebody else has to poll it.
    pub fn track<F: Future>(&self, cleanup: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.track_future(cleanup)
    }

    /// Waits until no clean-up is under way.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: the tasks go on when the future is dropped.
    pub async fn settled(&self) {
        // A closed tracker still takes tasks: those of guards that are dropped after `close`.
        self.0.close();
        self.0.wait().await;
    }

    /// Waits as [`settled`](Self::settled) does, for this time at most. Returns how many tasks are left.
    ///
    /// # Cancel safety
    ///
    /// As [`settled`](Self::settled).
    pub async fn settle(&self, patience: Duration) -> usize {
        // The tasks that are left are counted below.
        let _ = timeout(patience, self.settled()).await;
        self.0.len()
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
        background.spawn(&runtime, tokio::time::sleep(PATIENCE / 2));
        assert_eq!(background.settle(PATIENCE).await, 0);
        background.spawn(&runtime, tokio::time::sleep(PATIENCE / 2));
        background.spawn(&runtime, pending());
        assert_eq!(background.settle(PATIENCE).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_tracked_counts_until_it_is_dropped() {
        let background = Background::default();
        let tracked = background.track(pending::<()>());
        assert_eq!(background.settle(PATIENCE).await, 1);
        drop(tracked);
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
