//! Work that concurrent callers share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Result;
use crate::process::tasks::runtime::Home;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Runs some work once for all concurrent callers.
///
/// The work runs in a task of the [driver](Home::driver), so a caller that is not polled, or dropped, delays no other caller.
#[derive(Debug)]
pub struct SingleFlight<T = Result<()>> {
    home: Home,
    last: Mutex<Option<Flight<T>>>,
}

/// Work that was started, with its result once it has ended.
type Flight<T> = watch::Receiver<Option<T>>;

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self { home: Home::default(), last: Mutex::default() }
    }
}

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Work that is driven by this runtime.
    #[must_use]
    pub fn at(home: Home) -> Self {
        Self { home, ..Self::default() }
    }

    /// Joins the work that is running, or starts it, and returns its result. `None` if it takes longer than `patience`: its
    /// runtime may be paused, so the next caller starts it again.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the work continues.
    pub async fn join<F>(&self, patience: Duration, work: impl Fn() -> F + Send + Sync) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let until = Instant::now() + patience;
        // Again if the runtime of the work was shut down, which drops the work without a result.
        for _ in 0..2 {
            let mut flight = self.running_or_start(&work);
            let result = timeout_at(until, flight.wait_for(Option::is_some)).await;
            match result.map(|ended| ended.map(|result| result.clone())) {
                Ok(Ok(result)) => return result,
                Ok(Err(_)) => {}
                Err(_) => {
                    self.last().take_if(|last| last.same_channel(&flight));
                    return None;
                }
            }
        }
        None
    }

    fn running_or_start<F>(&self, work: impl Fn() -> F) -> Flight<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut last = self.last();
        let is_running = |flight: &&Flight<T>| flight.borrow().is_none() && flight.has_changed().is_ok();
        if let Some(flight) = last.as_ref().filter(is_running) {
            return flight.clone();
        }
        let (sender, flight) = watch::channel(None);
        let work = work();
        drop(self.home.driver().spawn(async move { sender.send_replace(Some(work.await)) }));
        *last = Some(flight.clone());
        flight
    }

    fn last(&self) -> MutexGuard<'_, Option<Flight<T>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::runtime::Builder;
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Counts its starts, and takes a second.
    fn work(started: &Arc<AtomicUsize>) -> impl Future<Output = Result<()>> + Send + 'static {
        started.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_the_work() {
        let (flight, started) = (SingleFlight::default(), Arc::default());
        let join = || flight.join(PATIENCE, || work(&started));
        // A dropped caller does not end the work.
        assert!(timeout(Duration::from_millis(500), join()).await.is_err());
        assert!(matches!(tokio::join!(join(), join()), (Some(Ok(())), Some(Ok(())))));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        assert!(matches!(join().await, Some(Ok(()))));
        assert_eq!(started.load(Ordering::SeqCst), 2, "work that has ended is not joined");
    }

    #[tokio::test]
    async fn work_on_a_paused_or_ended_runtime_is_started_again() {
        let (flight, started) = (SingleFlight::default(), Arc::default());
        let paused = Builder::new_current_thread().enable_time().build().unwrap();
        let start_there = || {
            let _entered = paused.enter();
            drop(flight.running_or_start(|| work(&started)));
        };
        start_there();
        assert!(flight.join(Duration::from_millis(50), || work(&started)).await.is_none());
        assert!(matches!(flight.join(PATIENCE, || work(&started)).await, Some(Ok(()))));
        assert_eq!(started.load(Ordering::SeqCst), 2);
        start_there();
        // Only the paused work is abandoned, by however many callers.
        let late = async |start: u64, patience: u64| {
            sleep(Duration::from_millis(start)).await;
            flight.join(Duration::from_millis(patience), || work(&started)).await
        };
        tokio::join!(late(0, 100), late(60, 100), late(120, 10_000), late(200, 10_000));
        assert_eq!(started.load(Ordering::SeqCst), 4);
        start_there();
        paused.shutdown_background();
        assert!(matches!(flight.join(PATIENCE, || work(&started)).await, Some(Ok(()))));
        assert_eq!(started.load(Ordering::SeqCst), 6);
    }
}
