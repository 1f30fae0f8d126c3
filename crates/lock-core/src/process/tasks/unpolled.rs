//! Drops an acquisition that nobody polls any more.
//!
//! An acquisition of several locks holds some of them while it asks for the next one. A future that is kept and not polled, in a
//! `select!` loop for instance, would keep them for as long as it is kept: guards renew themselves. So a task looks at it whenever it
//! is woken, and drops it if it is not polled within a second. It holds nothing then, as after any drop.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Runs an acquisition. One that was woken and is not polled for a second is dropped, with all that it holds, and begins again when it
/// is polled.
///
/// # Cancel safety
///
/// As that of the acquisition: dropping the future drops it.
pub async fn unless_unpolled<F>(begin: impl Fn() -> F + Send) -> F::Output
where
    F: Future + Send + 'static,
{
    let mut current: Option<Polled<F>> = None;
    poll_fn(move |context| {
        loop {
            match current.get_or_insert_with(|| Polled::new(begin())).poll(context) {
                Some(polled) => return polled,
                None => current = None,
            }
        }
    })
    .await
}

/// The side of the caller.
struct Polled<F> {
    acquisition: Arc<Acquisition<F>>,
    check: Option<AbortOnDropHandle<()>>,
}

/// An acquisition, and whether it is polled.
struct Acquisition<F> {
    progress: Mutex<Progress<F>>,
    /// It was woken, and not polled since.
    is_woken: AtomicBool,
    woken: Notify,
    caller: AtomicWaker,
}

struct Progress<F> {
    /// `None` once it is dropped.
    future: Option<Pin<Box<F>>>,
    polls: u64,
}

impl<F: Future + Send + 'static> Polled<F> {
    fn new(future: F) -> Self {
        let progress = Progress { future: Some(Box::pin(future)), polls: 0 };
        let acquisition = Acquisition {
            progress: Mutex::new(progress),
            is_woken: AtomicBool::new(false),
            woken: Notify::new(),
            caller: AtomicWaker::new(),
        };
        Self { acquisition: Arc::new(acquisition), check: None }
    }

    /// `None` if it was dropped, as nobody polled it.
    fn poll(&mut self, context: &Context<'_>) -> Option<Poll<F::Output>> {
        let polled = self.acquisition.poll(context)?;
        // The runtime of the last check may have ended.
        let is_checked = self.check.as_ref().is_some_and(|check| !check.is_finished());
        if polled.is_pending()
            && !is_checked
            && let Ok(runtime) = Handle::try_current()
        {
            let check = check(Arc::downgrade(&self.acquisition));
            self.check = Some(AbortOnDropHandle::new(runtime.spawn(check)));
        }
        Some(polled)
    }
}

/// At once, also while the check looks at it.
impl<F> Drop for Polled<F> {
    fn drop(&mut self) {
        let future = self.acquisition.progress().future.take();
        drop(future);
    }
}

impl<F> Acquisition<F> {
    fn progress(&self) -> MutexGuard<'_, Progress<F>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future + Send + 'static> Acquisition<F> {
    fn poll(self: &Arc<Self>, context: &Context<'_>) -> Option<Poll<F::Output>> {
        self.caller.register(context.waker());
        let mut progress = self.progress();
        progress.polls = progress.polls.wrapping_add(1);
        self.is_woken.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(self));
        Some(progress.future.as_mut()?.as_mut().poll(&mut Context::from_waker(&waker)))
    }

    fn is_being_polled(&self) -> bool {
        matches!(self.progress.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// The number of polls so far, if it was woken, not polled since, and is not being polled.
    fn polls_until_woken(&self) -> Option<u64> {
        let progress = self.progress.try_lock().ok()?;
        self.is_woken.load(Ordering::Acquire).then_some(progress.polls)
    }

    /// Takes it if it was not polled since.
    fn take_unpolled(&self, polls: u64) -> Option<Pin<Box<F>>> {
        let mut progress = self.progress.try_lock().ok()?;
        if progress.polls == polls { progress.future.take() } else { None }
    }
}

impl<F: Future + Send + 'static> Wake for Acquisition<F> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.woken.notify_one();
        self.caller.wake();
    }
}

async fn check<F: Future + Send + 'static>(checked: Weak<Acquisition<F>>) {
    loop {
        let Some(acquisition) = checked.upgrade() else { return };
        // Its caller ends this task.
        acquisition.woken.notified().await;
        while acquisition.is_being_polled() {
            // That poll may end without another wake, however long it takes.
            sleep(POLLED_WITHIN).await;
        }
        // A poll that began meanwhile was not woken yet, or its wake is still to be noticed.
        let Some(polls) = acquisition.polls_until_woken() else { continue };
        drop(acquisition);
        sleep(POLLED_WITHIN).await;
        let Some(acquisition) = checked.upgrade() else { return };
        if let Some(unpolled) = acquisition.take_unpolled(polls) {
            tracing::debug!("an acquisition of several locks is rolled back, as nobody polls it");
            drop(unpolled);
            return;
        }
    }
}

/// How long an acquisition that was woken may be left alone.
const POLLED_WITHIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use futures_util::FutureExt;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// Counts the acquisitions that hold something.
    #[derive(Default)]
    struct Held(Arc<()>);

    impl Held {
        fn hold(&self) -> Arc<()> {
            Arc::clone(&self.0)
        }

        fn count(&self) -> usize {
            Arc::strong_count(&self.0) - 1
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_polled_holds_nothing_and_begins_again() {
        let (held, go, begun) = (Held::default(), Arc::new(Notify::new()), AtomicUsize::new(0));
        let begin = || {
            begun.fetch_add(1, Ordering::SeqCst);
            let (hold, go) = (held.hold(), Arc::clone(&go));
            async move {
                go.notified().await;
                sleep(Duration::from_millis(1)).await;
                drop(hold);
            }
        };
        let mut acquiring = Box::pin(unless_unpolled(begin));
        // It waits, and nothing wakes it: it goes on as if it were polled.
        assert!(timeout(Duration::from_millis(1), &mut acquiring).await.is_err());
        sleep(Duration::from_secs(60)).await;
        assert_eq!(held.count(), 1);
        go.notify_one();
        sleep(Duration::from_secs(2)).await;
        assert_eq!(held.count(), 0);
        // It begins again, with the notification that it has left.
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        acquiring.await;
        assert_eq!((begun.load(Ordering::SeqCst), held.count()), (2, 0));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_wakes_itself_in_a_long_poll_and_is_not_polled_again_holds_nothing() {
        let held = Held::default();
        let begin = || {
            let (hold, mut polls) = (held.hold(), 0);
            poll_fn(move |context| {
                let _ = &hold;
                polls += 1;
                if polls == 2 {
                    context.waker().wake_by_ref();
                    // The check finds it polled at once, and still a second later.
                    thread::sleep(POLLED_WITHIN * 3 / 2);
                }
                Poll::<()>::Pending
            })
        };
        let mut acquiring = Box::pin(unless_unpolled(begin));
        for _ in 0..2 {
            assert!((&mut acquiring).now_or_never().is_none());
        }
        assert_eq!(held.count(), 1);
        let dropped = async {
            while held.count() > 0 {
                sleep(POLLED_WITHIN / 10).await;
            }
        };
        timeout(POLLED_WITHIN * 30, dropped).await.expect("nobody polls it");
        drop(acquiring);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_polled_goes_on_and_what_is_dropped_ends() {
        let held = Held::default();
        let begun = Instant::now();
        unless_unpolled(|| async { sleep(Duration::from_secs(60)).await }).await;
        assert!(begun.elapsed() >= Duration::from_secs(60));
        let forever = unless_unpolled(|| {
            let hold = held.hold();
            async move {
                pending::<()>().await;
                drop(hold);
            }
        });
        assert!(timeout(Duration::from_secs(60), forever).await.is_err());
        assert_eq!(held.count(), 0);
    }
}
