//! What begins a moment after a lock was granted, if it is still held then.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Begins something for a guard that is still held.
pub(crate) trait Begin: Send + Sync {
    /// Begins it, without blocking.
    fn begin(self: Arc<Self>);
}

/// What begins a moment after a grant, unless the guard is released before: most are, and so cost no task of their own.
#[derive(Default)]
pub(crate) struct Later {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the order of time. A guard that is released leaves a weak reference to nothing.
    waiting: VecDeque<(Instant, Weak<dyn Begin>)>,
    /// Whether the task runs that begins them.
    is_running: bool,
}

impl Later {
    /// Begins this after [`MOMENT`], if it still exists then. The task runs on the runtime of the caller.
    pub(crate) fn add(self: &Arc<Self>, what: &Arc<impl Begin + 'static>) {
        let what: Weak<dyn Begin> = Arc::downgrade(&(Arc::clone(what) as Arc<dyn Begin>));
        let mut state = self.state();
        state.waiting.push_back((Instant::now() + MOMENT, what));
        if !mem::replace(&mut state.is_running, true) {
            drop(state);
            drop(tokio::spawn(Running { later: Arc::clone(self), has_ended: false }.run()));
        }
    }

    /// Those whose time has come; nothing once the task is to end.
    fn due(&self, is_idle: bool) -> Option<Vec<Weak<dyn Begin>>> {
        let (now, mut state) = (Instant::now(), self.state());
        if is_idle && state.waiting.is_empty() {
            state.is_running = false;
            return None;
        }
        let count = state.waiting.partition_point(|(due, _)| *due <= now);
        Some(state.waiting.drain(..count).map(|(_, what)| what).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("waiting", &self.state().waiting.len()).finish_non_exhaustive()
    }
}

/// The task that begins what is due. It ends when nothing was added for a while.
struct Running {
    later: Arc<Later>,
    /// By itself, which is noted already.
    has_ended: bool,
}

impl Running {
    async fn run(mut self) {
        let mut idle = 0;
        loop {
            sleep(LOOK).await;
            let Some(due) = self.later.due(idle >= IDLE_LOOKS) else {
                self.has_ended = true;
                return;
            };
            idle = if due.is_empty() { idle + 1 } else { 0 };
            due.iter().filter_map(Weak::upgrade).for_each(Begin::begin);
        }
    }
}

/// When its runtime is shut down, the next one runs on that of the next caller.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.later.state().is_running = false;
        }
    }
}

/// How long a guard is held before anything begins. To release the shadow of a lock that is held for less would take longer than
/// it was held.
pub(crate) const MOMENT: Duration = Duration::from_millis(10);
/// How often the task looks: so much later something may begin.
const LOOK: Duration = Duration::from_millis(5);
/// About a second, so that a process that has locks now and then does not start a task for each of them.
const IDLE_LOOKS: u32 = 200;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counted(Arc<AtomicUsize>);

    impl Begin for Counted {
        fn begin(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_exists_after_a_moment_begins_and_the_rest_does_not() {
        let (later, begun) = (Arc::<Later>::default(), Arc::<AtomicUsize>::default());
        // The task ends meanwhile, and is started again.
        for round in 1..3 {
            let [kept, dropped] = [(); 2].map(|()| Arc::new(Counted(Arc::clone(&begun))));
            later.add(&kept);
            later.add(&dropped);
            drop(dropped);
            sleep(MOMENT - Duration::from_millis(1)).await;
            assert_eq!(begun.load(Ordering::Relaxed), round - 1, "too early");
            sleep(LOOK * 2).await;
            assert_eq!(begun.load(Ordering::Relaxed), round);
            assert!(later.state().is_running, "the next one needs no task");
            sleep(LOOK * (IDLE_LOOKS + 2)).await;
            assert!(!later.state().is_running && later.state().waiting.is_empty());
        }
    }
}
