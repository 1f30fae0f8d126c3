//! Asking all masters at once.

use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;

/// The smallest number of masters that any other such number has one in common with.
pub(crate) const fn quorum(masters: usize) -> usize {
    masters / 2 + 1
}

/// Requests to all masters. The first answers decide; the requests behind them are carried to their
/// end in the background, also when the wave is dropped.
pub(crate) struct Wave<T: Send + 'static> {
    pending: FuturesUnordered<Numbered<T>>,
    runtime: Option<Handle>,
}

/// A request, with the number of its master.
type Numbered<T> = Pin<Box<dyn Future<Output = (usize, T)> + Send>>;

impl<T: Send + 'static> Wave<T> {
    /// The wave of these requests, one for each master, in their order.
    pub(crate) fn new<F: Future<Output = T> + Send + 'static>(requests: impl IntoIterator<Item = F>) -> Self {
        let pending = FuturesUnordered::new();
        for (master, request) in requests.into_iter().enumerate() {
            let numbered: Numbered<T> = Box::pin(async move { (master, request.await) });
            pending.push(numbered);
        }
        Self { pending, runtime: Handle::try_current().ok() }
    }

    /// The next answer, and which master gave it.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        self.pending.next().await
    }

    /// How many answers are to come.
    pub(crate) fn outstanding(&self) -> usize {
        self.pending.len()
    }
}

impl<T: Send + 'static> Drop for Wave<T> {
    fn drop(&mut self) {
        let mut rest = std::mem::take(&mut self.pending);
        if let Some(runtime) = self.runtime.take().filter(|_| !rest.is_empty()) {
            drop(runtime.spawn(async move { while rest.next().await.is_some() {} }));
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Wave<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wave").field("outstanding", &self.outstanding()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn quorums() {
        assert_eq!([3, 5, 7].map(quorum), [2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wave_runs_to_its_end() {
        let done = Arc::new(AtomicUsize::new(0));
        let requests = (0..5).map(|number| {
            let done = Arc::clone(&done);
            async move {
                tokio::time::sleep(Duration::from_millis(number)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
        let mut wave = Wave::new(requests);
        assert_eq!(wave.next().await, Some((0, ())));
        assert_eq!(wave.outstanding(), 4);
        drop(wave);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(done.load(Ordering::SeqCst), 5);
    }
}
