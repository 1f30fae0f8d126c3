//! What is done once for all who ask for it at the same time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Result;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Work that is done once for all who ask for it while it is under way.
///
/// It is done in a task: who asks may be polled as late as it likes, or be dropped, and holds up nobody else.
#[derive(Debug, Default)]
pub struct SingleFlight {
    last: Mutex<Option<Flight>>,
}

/// Work that was begun, and once it is done how that went.
type Flight = watch::Receiver<Option<Result<()>>>;

impl SingleFlight {
    /// Waits for the end of the work that is under way, or begins it. `None` when that takes longer than this: the runtime
    /// that it was begun on may stand still, and whoever asks next begins anew.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, the work goes on.
    pub async fn join<F>(&self, patience: Duration, work: impl Fn() -> F + Send + Sync) -> Option<Result<()>>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let until = Instant::now() + patience;
        // Nobody is left to tell how it went when the runtime was shut down that it was begun on.
        for _ in 0..2 {
            let mut flight = self.board(&work);
            let landed = timeout_at(until, flight.wait_for(Option::is_some)).await;
            match landed.map(|landed| landed.map(|landed| landed.clone())) {
                Ok(Ok(landed)) => return landed,
                Ok(Err(_)) => {}
                Err(_) => {
                    self.last().take_if(|last| last.same_channel(&flight));
                    return None;
                }
            }
        }
        None
    }

    fn board<F>(&self, work: impl Fn() -> F) -> Flight
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut last = self.last();
        let is_under_way = |flight: &&Flight| flight.borrow().is_none() && flight.has_changed().is_ok();
        if let Some(flight) = last.as_ref().filter(is_under_way) {
            return flight.clone();
        }
        let (landing, flight) = watch::channel(None);
        let work = work();
        drop(tokio::spawn(async move { landing.send_replace(Some(work.await)) }));
        *last = Some(flight.clone());
        flight
    }

    fn last(&self) -> MutexGuard<'_, Option<Flight>> {
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

    /// Counts how often it is begun, and takes a while.
    fn work(begun: &Arc<AtomicUsize>) -> impl Future<Output = Result<()>> + Send + 'static {
        begun.fetch_add(1, Ordering::SeqCst);
        async {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_at_the_same_time_wait_for_the_same() {
        let (flight, begun) = (SingleFlight::default(), Arc::default());
        let join = || flight.join(PATIENCE, || work(&begun));
        // Those who stop to wait end nothing.
        assert!(timeout(Duration::from_millis(500), join()).await.is_err());
        assert!(matches!(tokio::join!(join(), join()), (Some(Ok(())), Some(Ok(())))));
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        assert!(matches!(join().await, Some(Ok(()))));
        assert_eq!(begun.load(Ordering::SeqCst), 2, "what has ended is over");
    }

    #[tokio::test]
    async fn a_runtime_that_stands_still_or_ends_is_given_up() {
        let (flight, begun) = (SingleFlight::default(), Arc::default());
        let stands_still = Builder::new_current_thread().enable_time().build().unwrap();
        let begin_there = || {
            let _entered = stands_still.enter();
            drop(flight.board(|| work(&begun)));
        };
        begin_there();
        assert!(flight.join(Duration::from_millis(50), || work(&begun)).await.is_none());
        assert!(matches!(flight.join(PATIENCE, || work(&begun)).await, Some(Ok(()))));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        begin_there();
        // Only the one that stands still is given up, by however many.
        let late = async |start: u64, patience: u64| {
            sleep(Duration::from_millis(start)).await;
            flight.join(Duration::from_millis(patience), || work(&begun)).await
        };
        tokio::join!(late(0, 100), late(60, 100), late(120, 10_000), late(200, 10_000));
        assert_eq!(begun.load(Ordering::SeqCst), 4);
        begin_there();
        stands_still.shutdown_background();
        assert!(matches!(flight.join(PATIENCE, || work(&begun)).await, Some(Ok(()))));
        assert_eq!(begun.load(Ordering::SeqCst), 6);
    }
}
