//! The runtime behind the blocking types, and the wait of a thread for its answer.

use std::pin::pin;
use std::process;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::coop::{RestoreOnPending, poll_proceed};

use crate::values::error::NO_BACKEND;
use crate::{Error, ErrorKind, Result};

/// One thread renews leases while a callback or a log of the program holds up the other.
const THREADS: usize = 2;
/// No tokio task may take as many steps in one poll: the budget is counted in a byte.
const MORE_THAN_ANY_BUDGET: usize = 256;

/// Blocks the thread until the future is ready. The runtime of the process drives what the future waits for.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) in a tokio task; then the future is dropped before it has begun.
pub(super) fn wait<T>(operation: &'static str, future: impl Future<Output = Result<T>>) -> Result<T> {
    if is_in_a_task() {
        return Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
            .with_message("a blocking call inside of a tokio runtime would stop its tasks")
            .with_hint("use the asynchronous types here, or call it in tokio::task::spawn_blocking")
            .during(operation));
    }
    block_on(runtime().map_err(|error| error.during(operation))?, future)
}

/// The runtime of the process. It is never shut down: guards may be dropped at any time.
///
/// The child of a fork has none of its parent's threads, and so starts a runtime of its own.
fn runtime() -> Result<&'static Runtime> {
    let us = process::id();
    let ours = |slot: &'static OnceLock<OfProcess>| {
        Some(slot.get_or_init(|| OfProcess { process: us, ..OfProcess::default() }))
            .filter(|slot| slot.process == us)
    };
    if let Some(slot) = RUNTIMES.iter().find_map(ours) {
        return slot.runtime();
    }
    Err(Error::new(ErrorKind::Unsupported, NO_BACKEND)
        .with_message(format!(
            "{GENERATIONS} processes, each the child of the one before, have used blocking locks"
        ))
        .with_hint("run another program instead of a fork (exec)"))
}

/// The runtimes of this process and of its ancestors by fork.
static RUNTIMES: [OnceLock<OfProcess>; GENERATIONS] = [const { OnceLock::new() }; GENERATIONS];
const GENERATIONS: usize = 16;

/// The runtime of one process.
#[derive(Debug, Default)]
struct OfProcess {
    process: u32,
    runtime: OnceLock<Runtime>,
    starting: Mutex<()>,
}

impl OfProcess {
    fn runtime(&self) -> Result<&Runtime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        match self.runtime.get() {
            Some(runtime) => Ok(runtime),
            None => start().map(|runtime| self.runtime.get_or_init(|| runtime)),
        }
    }
}

fn start() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(THREADS).thread_name("polylock").enable_all().build();
    runtime.map_err(|error| {
        Error::new(ErrorKind::Unavailable, NO_BACKEND)
            .with_message("the threads that drive the connections cannot be started")
            .with_hint("raise the limit of threads or file descriptors of this process")
            .caused_by(error)
    })
}

/// Whether a tokio runtime is polling on this thread. A thread of `spawn_blocking` or `block_in_place` may block, though it
/// has a runtime, and tokio tells it from a task by one public sign only: a task has a budget of steps.
fn is_in_a_task() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut steps: Vec<RestoreOnPending> = Vec::new();
    let mut has_budget = false;
    while steps.len() < MORE_THAN_ANY_BUDGET && !has_budget {
        match poll_proceed(&mut context) {
            Poll::Ready(step) => steps.push(step),
            Poll::Pending => has_budget = true,
        }
    }
    // Each gives back what was left before it: so the last one first.
    while steps.pop().is_some() {}
    has_budget
}

/// Polls the future on this thread. Not by tokio's `block_on`, which panics where it must not be called.
fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let _entered = runtime.enter();
    let parked = Arc::new(Parked::default());
    let waker = Waker::from(Arc::clone(&parked));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        parked.until_woken();
    }
}

/// A thread that waits to be woken. Not by [`std::thread::park`]: a call within the call, from a callback of the program,
/// would take the wake-up of the outer one.
#[derive(Debug, Default)]
struct Parked {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl Parked {
    fn until_woken(&self) {
        let is_woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.woken.wait_while(is_woken, |is_woken| !*is_woken);
        *woken.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use tokio::task::{LocalSet, block_in_place, coop, spawn_blocking};
    use tokio::time::sleep;

    use super::*;

    fn refused() -> bool {
        match wait("test", async { Ok(()) }) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("spawn_blocking"), "{error}");
                true
            }
        }
    }

    #[test]
    fn a_plain_thread_may_block() {
        let runtime = Builder::new_current_thread().build().unwrap();
        assert!(!refused());
        let _entered = runtime.enter();
        assert!(!refused(), "a thread that has a handle of a runtime polls nothing");
    }

    #[tokio::test]
    async fn a_task_of_one_thread_may_not() {
        assert!(refused());
        assert!(tokio::spawn(async { refused() }).await.unwrap());
        assert!(LocalSet::new().run_until(async { refused() }).await);
        assert!(!spawn_blocking(refused).await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_of_several_threads_may_not() {
        assert!(refused());
        assert!(tokio::spawn(async { refused() }).await.unwrap());
        assert!(!spawn_blocking(refused).await.unwrap());
        assert!(!tokio::spawn(async { block_in_place(refused) }).await.unwrap());
        assert!(refused(), "the task is one again");
    }

    #[tokio::test]
    async fn a_refusal_costs_the_task_none_of_its_budget() {
        let left = || {
            let mut context = Context::from_waker(Waker::noop());
            let mut steps = Vec::new();
            while let Poll::Ready(step) = poll_proceed(&mut context) {
                steps.push(step);
            }
            let left = steps.len();
            while steps.pop().is_some() {}
            left
        };
        let before = left();
        assert!(refused() && before > 0);
        assert_eq!(left(), before);
    }

    /// Where no sign is left, the call blocks; it does not panic.
    #[tokio::test]
    async fn a_task_without_a_budget_is_not_recognized_and_gets_its_answer() {
        assert!(!coop::unconstrained(async { refused() }).await);
    }

    #[test]
    fn a_call_within_a_call_takes_no_wake_up() {
        let inner = || {
            wait("test", async {
                sleep(Duration::from_millis(20)).await;
                Ok(())
            })
        };
        let outer = thread::spawn(move || {
            wait("test", async {
                let early = tokio::spawn(sleep(Duration::from_millis(5)));
                // Armed before the inner call, and ready during it.
                let mut early = pin!(early);
                let first = std::future::poll_fn(|context| Poll::Ready(early.as_mut().poll(context)));
                assert!(first.await.is_pending());
                inner().unwrap();
                early.await.unwrap();
                Ok(())
            })
        });
        outer.join().unwrap().unwrap();
    }
}
