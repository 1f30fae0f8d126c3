//! Runs a body under a lock, and releases the lock however the body ends.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::thread;

use futures_util::FutureExt;

use crate::{Error, Guard, GuardView, Released, Result, RunError};

/// Runs `body` as [`Guard::run`] does, then releases the lock, also when the body is dropped or panics.
///
/// A panic continues after the release. A release whose outcome is unknown is no error here: the lock was valid until the
/// end of the body, and the guard repeats the release in the background.
pub(crate) async fn run_and_release<F: Future>(
    guard: Guard,
    body: impl FnOnce(GuardView) -> F,
) -> Result<F::Output, RunError<F::Output>> {
    // Inside, so that a panic of the function itself is caught too.
    let ran = async { guard.run(body(guard.view())).await };
    let ran = AssertUnwindSafe(ran).catch_unwind().await;
    let lost = guard.found_lost();
    let released = guard.release().await;
    conclude(ran, lost, released)
}

/// What becomes of a body that has ended, after the release. `lost` is the error if that found the lock gone.
pub(crate) fn conclude<T>(
    ran: thread::Result<Result<T, RunError<T>>>,
    lost: Error,
    released: Result<Released>,
) -> Result<T, RunError<T>> {
    match (ran.unwrap_or_else(|panic| resume_unwind(panic)), released) {
        (Ok(output), Ok(Released::AlreadyLost)) => Err(RunError { error: lost, output: Some(output) }),
        (Ok(output), Err(error)) => {
            tracing::warn!(%error, "the work is done, and the release is repeated in the background");
            Ok(output)
        }
        (ran, _) => ran,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;
    use crate::{ErrorKind, Locks, MemoryConfig, Mutex};

    const PATIENCE: Duration = Duration::from_secs(5);

    fn locks() -> Locks {
        MemoryConfig::new().connect().unwrap()
    }

    /// Another client: the wait queue of the first would hide whether the store is free.
    async fn is_free(locks: &Locks) -> bool {
        let other = Locks::from_dyn(std::sync::Arc::clone(locks.backend()));
        other.mutex("a").try_acquire().await.unwrap().is_some()
    }

    #[tokio::test]
    async fn a_body_that_fails_releases() {
        let locks = locks();
        let failed = locks.mutex("a").run(|_| async { Err::<(), _>("no disk") }).await.unwrap();
        assert_eq!(failed, Err("no disk"));
        assert!(is_free(&locks).await);
    }

    #[tokio::test]
    async fn a_body_that_panics_releases_before_the_panic_continues() {
        let locks = locks();
        let mutex = locks.mutex("a");
        let run = AssertUnwindSafe(mutex.run(|_| async { panic!("wanted by the test") }));
        assert!(run.catch_unwind().await.is_err());
        assert!(is_free(&locks).await, "the release was left to the background");
    }

    #[tokio::test]
    async fn a_lost_lock_drops_the_body() {
        let locks = locks();
        let (began, begun) = oneshot::channel();
        let breaking = async {
            begun.await.unwrap();
            locks.break_lock("a").await.unwrap()
        };
        let mutex = locks.mutex("a");
        let run = mutex.run(|_| async {
            began.send(()).unwrap();
            pending::<()>().await;
        });
        let (ran, _) = timeout(PATIENCE, async { tokio::join!(run, breaking) }).await.unwrap();
        let lost = ran.unwrap_err();
        assert_eq!((lost.error().kind(), lost.into_output()), (ErrorKind::Lost, None));
    }

    #[tokio::test]
    async fn a_dropped_run_drops_the_body_and_releases() {
        let locks = locks();
        let (began, begun) = oneshot::channel();
        let mutex = locks.mutex("a");
        {
            let run = mutex.run(|_| async {
                began.send(()).unwrap();
                pending::<()>().await;
            });
            tokio::select! {
                _ = run => unreachable!("the body never ends"),
                begun = begun => begun.unwrap(),
            }
        }
        assert!(timeout(PATIENCE, mutex.acquire()).await.unwrap().unwrap().is_valid());
    }

    #[tokio::test]
    async fn a_mutex_that_is_not_acquired_runs_nothing() {
        let ran: Result<(), _> = locks().mutex("").run(|_| async { unreachable!() }).await;
        let error = ran.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::InvalidName);
    }

    #[tokio::test]
    async fn it_runs_in_a_task_of_its_own() {
        async fn token_of(mutex: Mutex) -> u64 {
            mutex.run(|view| async move { view.token().get() }).await.unwrap()
        }
        let mutex = locks().mutex("a");
        assert_eq!(tokio::spawn(token_of(mutex)).await.unwrap(), 1);
    }
}
