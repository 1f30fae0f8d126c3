//! Drops a future at every one of its await points.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Drops a future after a number of polls; see [`cancel_after`].
pub struct CancelAfter<F> {
    future: Option<Pin<Box<F>>>,
    left: usize,
}

/// Polls `future` at most `k` times.
///
/// Returns the output when the future completes by then, and `None` when it was dropped: after its `k`-th pending poll, or
/// before the first poll when `k` is 0. The future is dropped before this one completes.
pub fn cancel_after<F: Future>(k: usize, future: F) -> CancelAfter<F> {
    CancelAfter { future: Some(Box::pin(future)), left: k }
}

/// Runs `attempt` with k = 0, 1, 2, ... until its future completes; returns the last k.
///
/// An attempt makes a new future, cancels it by [`cancel_after`], checks that nothing was left behind, and returns the
/// result of `cancel_after`:
///
/// ```
/// use lock_testkit::cancel::{cancel_after, for_each_poll_count};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let polls = for_each_poll_count(async |k| {
///     let done = cancel_after(k, async {
///         tokio::task::yield_now().await;
///         tokio::task::yield_now().await;
///     });
///     let done = done.await;
///     // Check here that a cancelled attempt has left nothing.
///     done
/// });
/// assert_eq!(polls.await, 3);
/// # });
/// ```
///
/// # Panics
///
/// When the future has not completed after 10 000 polls. A future that is never woken hangs, as it would without this: put
/// a timeout around such an attempt.
pub async fn for_each_poll_count<T>(mut attempt: impl AsyncFnMut(usize) -> Option<T>) -> usize {
    for k in 0..=MOST_POLLS {
        if attempt(k).await.is_some() {
            return k;
        }
    }
    panic!("the future is still pending after {MOST_POLLS} polls");
}

impl<F: Future> Future for CancelAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left > 0 {
            let future = self.future.as_mut().expect("not polled after completion");
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                self.future = None;
                return Poll::Ready(Some(output));
            }
            self.left -= 1;
        }
        if self.left > 0 {
            return Poll::Pending;
        }
        self.future = None;
        Poll::Ready(None)
    }
}

impl<F> fmt::Debug for CancelAfter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelAfter").field("left", &self.left).finish_non_exhaustive()
    }
}

const MOST_POLLS: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// Counts how far a future came and how often it was dropped.
    #[derive(Default)]
    struct Count {
        steps: AtomicUsize,
        drops: AtomicUsize,
    }

    struct CountDrop<'a>(&'a Count);

    impl Drop for CountDrop<'_> {
        fn drop(&mut self) {
            self.0.drops.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Count {
        fn now(&self) -> (usize, usize) {
            (self.steps.load(Ordering::SeqCst), self.drops.load(Ordering::SeqCst))
        }

        async fn three_steps(&self) -> &'static str {
            let _guard = CountDrop(self);
            for _ in 0..3 {
                self.steps.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
            "done"
        }
    }

    #[tokio::test]
    async fn a_future_is_dropped_after_its_kth_pending_poll() {
        for k in 1..=3 {
            let count = Count::default();
            assert_eq!(cancel_after(k, count.three_steps()).await, None);
            assert_eq!(count.now(), (k, 1));
        }
        // Never polled, so it never began.
        let count = Count::default();
        assert_eq!(cancel_after(0, count.three_steps()).await, None);
        assert_eq!(count.now(), (0, 0));
    }

    #[tokio::test]
    async fn a_future_that_completes_in_time_gives_its_output() {
        for k in [4, 5, 100] {
            let count = Count::default();
            assert_eq!(cancel_after(k, count.three_steps()).await, Some("done"));
            assert_eq!(count.now(), (3, 1));
        }
    }

    #[tokio::test]
    async fn every_poll_count_is_tried_until_the_end() {
        let mut tried = Vec::new();
        let last = for_each_poll_count(async |k| {
            tried.push(k);
            cancel_after(k, Count::default().three_steps()).await
        });
        assert_eq!(last.await, 4);
        assert_eq!(tried, [0, 1, 2, 3, 4]);
    }

    #[tokio::test]
    #[should_panic(expected = "still pending")]
    async fn a_future_that_never_completes_is_noticed() {
        for_each_poll_count(async |k| cancel_after(k.min(3), spin()).await).await;
    }

    async fn spin() {
        loop {
            yield_now().await;
        }
    }
}
