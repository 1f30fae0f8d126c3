//! Ends what has begun, whether its caller polls it, drops it or neither.
//!
//! A task for each release would cost sixteen tasks on Redis 8 % of their rate. So the caller polls it, and one task for all of them
//! looks now and then: what is still there at the second look goes on in a task of its own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{self, Debug, Formatter};
use std::mem;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use foldhash::fast::FixedState;
use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, Id};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::process::poison::lock;

/// Between two looks at what has begun.
const LOOK: Duration = Duration::from_millis(50);

/// What has begun on each runtime, and its callers poll or should.
#[derive(Debug, Default)]
pub(super) struct Begun(Mutex<Watched>);

#[derive(Default)]
struct Watched {
    by_runtime: HashMap<Id, HashMap<u64, Arc<dyn TakeOver>, FixedState>, FixedState>,
    /// Of all runtimes, and for good: who leaves late takes no other one along.
    next: u64,
}

/// The side of the caller.
pub(super) struct Finish<T: Send + 'static> {
    /// Before the first poll.
    first: Option<First<T>>,
    shared: Option<(Arc<Shared<T>>, u64)>,
    begun: Arc<Begun>,
}

struct First<T> {
    future: BoxFuture<'static, T>,
    tasks: TaskTracker,
    runtime: Handle,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    tasks: TaskTracker,
    runtime: Handle,
}

enum State<T> {
    /// The caller polls it.
    Polled { future: BoxFuture<'static, T>, caller: Waker, counted: TaskTrackerToken },
    /// A task does.
    Running(JoinHandle<T>),
    /// Also while it is polled.
    Ended,
}

trait TakeOver: Send + Sync {
    /// Lets it go on in a task. Returns false if it is being polled now.
    fn take_over(&self) -> bool;
}

impl<T: Send + 'static> Finish<T> {
    pub(super) fn new(
        future: impl Future<Output = T> + Send + 'static,
        begun: &Arc<Begun>,
        tasks: &TaskTracker,
        runtime: &Handle,
    ) -> Self {
        let (tasks, runtime) = (tasks.clone(), runtime.clone());
        let first = First { future: Box::pin(future), tasks, runtime };
        Self { first: Some(first), shared: None, begun: Arc::clone(begun) }
    }

    /// Polls it for the first time.
    fn begin(&mut self, first: First<T>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let First { mut future, tasks, runtime } = first;
        if let Poll::Ready(done) = future.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        let state = State::Polled { future, caller: context.waker().clone(), counted: tasks.token() };
        let shared = Arc::new(Shared { state: Mutex::new(state), tasks, runtime });
        let key = self.begun.enter(Arc::clone(&shared) as _, &shared.runtime);
        self.shared = Some((shared, key));
        Poll::Pending
    }

    fn end(&mut self) -> Option<Arc<Shared<T>>> {
        let (shared, key) = self.shared.take()?;
        self.begun.leave(shared.runtime.id(), key);
        Some(shared)
    }
}

/// `None` if the runtime was shut down meanwhile.
impl<T: Send + 'static> Future for Finish<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(first) = self.first.take() {
            return self.begin(first, context);
        }
        let Some((shared, _)) = &self.shared else { unreachable!("it is not polled after its end") };
        let done = ready!(shared.poll(context));
        drop(self.end());
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.end() {
            drop(shared.go_on(&mut shared.state()));
        }
    }
}

impl<T: Send + 'static> Shared<T> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.state();
        // After a panic it stays ended.
        match mem::replace(&mut *state, State::Ended) {
            State::Polled { mut future, mut caller, counted } => {
                if let Poll::Ready(done) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(done));
                }
                caller.clone_from(context.waker());
                *state = State::Polled { future, caller, counted };
                Poll::Pending
            }
            State::Running(mut task) => match Pin::new(&mut task).poll(context) {
                Poll::Ready(Ok(done)) => Poll::Ready(Some(done)),
                Poll::Ready(Err(ended)) => {
                    Poll::Ready(ended.try_into_panic().map_or(None, |panic| resume_unwind(panic)))
                }
                Poll::Pending => {
                    *state = State::Running(task);
                    Poll::Pending
                }
            },
            State::Ended => unreachable!("it is not polled after its end"),
        }
    }

    /// The caller is to be woken when the state is unlocked.
    #[must_use]
    fn go_on(&self, state: &mut State<T>) -> Option<Waker> {
        match mem::replace(state, State::Ended) {
            State::Polled { future, caller, counted } => {
                *state = State::Running(self.tasks.spawn_on(future, &self.runtime));
                drop(counted);
                Some(caller)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        lock(&self.state)
    }
}

impl<T: Send + 'static> TakeOver for Shared<T> {
    fn take_over(&self) -> bool {
        let caller = match self.state.try_lock() {
            Ok(mut state) => self.go_on(&mut state),
            // It has panicked, and ended.
            Err(TryLockError::Poisoned(_)) => None,
            Err(TryLockError::WouldBlock) => return false,
        };
        caller.into_iter().for_each(Waker::wake);
        true
    }
}

impl Begun {
    fn enter(self: &Arc<Self>, begun: Arc<dyn TakeOver>, runtime: &Handle) -> u64 {
        let (mut watched, id) = (self.watched(), runtime.id());
        let key = watched.next;
        watched.next += 1;
        let here = watched.by_runtime.entry(id);
        let is_watched = matches!(here, Entry::Occupied(_));
        here.or_default().insert(key, begun);
        drop(watched);
        if !is_watched {
            let watcher = Watcher { begun: Arc::clone(self), runtime: id, has_ended: false };
            drop(runtime.spawn(watch(watcher)));
        }
        key
    }

    fn leave(&self, runtime: Id, key: u64) {
        if let Some(begun) = self.watched().by_runtime.get_mut(&runtime) {
            begun.remove(&key);
        }
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        lock(&self.0)
    }
}

impl Debug for Watched {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let begun: usize = self.by_runtime.values().map(HashMap::len).sum();
        f.debug_struct("Watched").field("begun", &begun).finish_non_exhaustive()
    }
}

/// The task that looks at what has begun on its runtime: another one may be driven no more. What it leaves when that is shut down
/// goes on, or ends, at once.
struct Watcher {
    begun: Arc<Begun>,
    runtime: Id,
    /// By itself: what begins from then on has another one.
    has_ended: bool,
}

/// Looks until nothing has begun.
async fn watch(mut watcher: Watcher) {
    let mut last_look = Some(0);
    while let Some(before) = last_look {
        sleep(LOOK).await;
        last_look = watcher.look(before);
    }
}

impl Watcher {
    /// Lets what has begun before this one go on in tasks. Returns the next one to begin, if there are others.
    fn look(&mut self, before: u64) -> Option<u64> {
        let old: Vec<_> = {
            let watched = self.begun.watched();
            let begun = watched.by_runtime.get(&self.runtime)?.iter();
            begun.filter(|&(&key, _)| key < before).map(|(&key, begun)| (key, Arc::clone(begun))).collect()
        };
        for (key, begun) in old {
            if begun.take_over() {
                self.begun.leave(self.runtime, key);
            }
        }
        let mut watched = self.begun.watched();
        if !watched.by_runtime.get(&self.runtime)?.is_empty() {
            return Some(watched.next);
        }
        watched.by_runtime.remove(&self.runtime);
        self.has_ended = true;
        None
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let left = self.begun.watched().by_runtime.remove(&self.runtime);
        for begun in left.iter().flat_map(HashMap::values) {
            begun.take_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::panic::AssertUnwindSafe;

    use futures_util::{FutureExt, poll};
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot;
    use tokio::task::{self, try_id};

    use crate::background::Background;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// Says in which task it ends.
    async fn answered(answer: oneshot::Receiver<()>, end: oneshot::Sender<Option<task::Id>>) {
        answer.await.unwrap();
        end.send(try_id()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_in_a_task_if_its_caller_drops_it_or_leaves_it_alone() {
        for is_dropped in [true, false] {
            let background = Background::default();
            let ((answer, asked), (end, ended)) = (oneshot::channel(), oneshot::channel());
            let runtime = Handle::current();
            let mut finish = Some(Box::pin(background.finish(&runtime, answered(asked, end))));
            assert!(poll!(finish.as_mut().unwrap()).is_pending());
            assert_eq!(background.under_way(), 1);
            if is_dropped {
                finish = None;
            }
            answer.send(()).unwrap();
            assert_eq!(background.settle(PATIENCE).await, 0);
            assert_ne!(ended.await.unwrap(), try_id());
            if let Some(finish) = finish {
                assert_eq!(finish.await, Some(()));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_answered_soon_needs_no_task() {
        let (background, runtime) = (Background::default(), Handle::current());
        let ((answer, asked), (end, ended)) = (oneshot::channel(), oneshot::channel());
        let mut finish = Box::pin(background.finish(&runtime, answered(asked, end)));
        assert!(poll!(&mut finish).is_pending());
        answer.send(()).unwrap();
        assert_eq!(finish.await, Some(()));
        assert_eq!((ended.await.unwrap(), background.under_way()), (try_id(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_ends_late_leaves_those_watched_that_have_begun_since() {
        let (background, runtime) = (Background::default(), Handle::current());
        let ((answer, asked), (end, ended)) = (oneshot::channel(), oneshot::channel());
        let mut first = Box::pin(background.finish(&runtime, asked));
        assert!(poll!(&mut first).is_pending());
        // A task has it, and there is nothing to look at any more.
        sleep(10 * LOOK).await;
        let mut kept = Box::pin(background.finish(&runtime, ended));
        assert!(poll!(&mut kept).is_pending());
        answer.send(()).unwrap();
        assert_eq!(first.await, Some(Ok(())));
        end.send(()).unwrap();
        assert_eq!(background.settle(PATIENCE).await, 0, "it goes on in a task");
        assert_eq!(kept.await, Some(Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn its_caller_hears_of_what_a_task_has_done() {
        let (background, runtime) = (Background::default(), Handle::current());
        assert_eq!(
            background
                .finish(&runtime, async {
                    sleep(10 * LOOK).await;
                    7
                })
                .await,
            Some(7)
        );
        let panicking = background.finish(&runtime, async {
            sleep(10 * LOOK).await;
            panic!("as it was asked to")
        });
        assert!(AssertUnwindSafe(panicking).catch_unwind().await.is_err());
        assert_eq!(background.under_way(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_panics_when_its_caller_polls_it_is_polled_no_more() {
        let (background, runtime) = (Background::default(), Handle::current());
        let panicking = background.finish(&runtime, async {
            sleep(LOOK / 2).await;
            panic!("as it was asked to")
        });
        assert!(AssertUnwindSafe(panicking).catch_unwind().await.is_err());
        assert_eq!(background.settle(PATIENCE).await, 0);
    }

    #[test]
    fn where_the_runtime_was_shut_down_it_is_dropped_and_others_go_on() {
        let background = Background::default();
        let runtimes =
            [(); 2].map(|()| tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap());
        let (answer, asked) = oneshot::channel();
        let [first, second] = runtimes;
        let handle = first.handle().clone();
        let mut dropped = Box::pin(background.finish::<()>(&handle, pending()));
        let mut kept = Box::pin(background.finish(second.handle(), asked));
        // The first one looks for both.
        assert!(first.block_on(async { poll!(&mut dropped) }).is_pending());
        assert!(second.block_on(async { poll!(&mut kept) }).is_pending());
        first.shutdown_background();
        assert_eq!(dropped.now_or_never(), Some(None));
        answer.send(()).unwrap();
        assert_eq!(second.block_on(background.settle(PATIENCE)), 0);
        assert_eq!(kept.now_or_never(), Some(Some(Ok(()))));
    }

    #[test]
    fn a_runtime_that_nobody_drives_keeps_nothing_of_others() {
        let background = Background::default();
        let [undriven, runtime] = [(); 2].map(|()| runtime());
        let (answer, asked) = oneshot::channel();
        let mut first = Box::pin(background.finish::<()>(undriven.handle(), pending()));
        assert!(undriven.block_on(async { poll!(&mut first) }).is_pending());
        let mut kept = Box::pin(background.finish(runtime.handle(), asked));
        assert!(runtime.block_on(async { poll!(&mut kept) }).is_pending());
        answer.send(()).unwrap();
        assert_eq!(runtime.block_on(background.settle(PATIENCE)), 1);
        assert_eq!(kept.now_or_never(), Some(Some(Ok(()))));
    }

    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }
}
