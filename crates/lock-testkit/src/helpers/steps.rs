//! The small steps of many tests: they wait until something has happened, and never for a time.

use std::future::IntoFuture;
use std::panic::Location;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lock_core::{Error, Guard, Locks, Mutex, Released};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// Far longer than anything takes that is waited for, also on a busy machine. What is to come before a lease ends needs a longer
/// lease.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What this future comes to.
///
/// # Panics
///
/// When it takes more than [`PATIENCE`], with the place of the call.
#[track_caller]
pub fn soon<F: IntoFuture>(coming: F) -> impl Future<Output = F::Output> {
    let (coming, caller) = (coming.into_future(), Location::caller());
    async move { timeout(PATIENCE, coming).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {caller}")) }
}

/// Waits until this holds.
///
/// # Panics
///
/// When it does not within half a minute, with `what`.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Acquires a lock.
///
/// # Panics
///
/// When that fails, or takes more than [`PATIENCE`].
pub async fn take(locks: &Locks, name: &str) -> Guard {
    soon(locks.mutex(name).acquire()).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Waits for a lock in a task of its own, and returns when it is in the queue.
///
/// # Panics
///
/// When it does not get there within [`PATIENCE`]. The task panics when the acquisition fails.
pub async fn queue_up(locks: &Locks, name: &str) -> JoinHandle<Guard> {
    let waiters =
        async || locks.inspect(name).await.unwrap_or_else(|error| panic!("{name}: {error}")).waiters;
    let before = waiters().await;
    let waiter = acquiring(locks.mutex(name));
    until("the waiter is in the queue", async || waiters().await > before).await;
    waiter
}

/// Waits until a lease is extended once more.
///
/// # Panics
///
/// When it ends, or is not extended within [`PATIENCE`].
pub async fn is_renewed(guard: &Guard) {
    let before = guard.valid_until();
    until("the lease is renewed", async || {
        assert!(guard.is_valid(), "{:?}", guard.state());
        guard.valid_until() > before
    })
    .await;
}

/// Releases a lock, and waits until this waiter has it.
///
/// # Panics
///
/// When it was lost, the release fails, or the waiter does not get it within [`PATIENCE`].
pub async fn hand_over(guard: Guard, waiter: JoinHandle<Guard>) -> Guard {
    give_back(guard).await;
    come(waiter).await
}

/// Acquires a lock in a task of its own, which panics when that fails.
pub fn acquiring(mutex: Mutex) -> JoinHandle<Guard> {
    tokio::spawn(async move { mutex.acquire().await.unwrap_or_else(|error| panic!("{error}")) })
}

/// Acquires so many locks at once, each in a task of its own. Returns the guards, and an error of those that got none.
///
/// # Panics
///
/// When that takes more than two minutes.
pub async fn crowd(locks: &Locks, tasks: usize) -> (Vec<Guard>, Option<Error>) {
    let mut acquiring = JoinSet::new();
    for task in 0..tasks {
        let mutex = locks.mutex(format!("lock/{task}"));
        acquiring.spawn(async move { mutex.acquire().await });
    }
    let acquired = timeout(4 * PATIENCE, acquiring.join_all()).await.expect("all of them end");
    let (guards, failed): (Vec<_>, Vec<_>) = acquired.into_iter().partition(Result::is_ok);
    (guards.into_iter().flatten().collect(), failed.into_iter().find_map(Result::err))
}

/// What a task comes to.
///
/// # Panics
///
/// When the task panics, or goes on for more than half a minute.
pub async fn come<T>(task: JoinHandle<T>) -> T {
    soon(task).await.expect("the task does not panic")
}

/// Releases a lock.
///
/// # Panics
///
/// When it was lost, or the release fails.
pub async fn give_back(guard: Guard) {
    let released = guard.release().await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(released, Released::Released);
}

/// Drops a runtime.
///
/// # Panics
///
/// When it does not end within half a minute: a task does not yield, or one of its blocking threads does not end.
pub fn ended(runtime: Runtime) {
    let (ends, has_ended) = mpsc::channel();
    thread::spawn(move || {
        drop(runtime);
        let _ = ends.send(());
    });
    has_ended.recv_timeout(PATIENCE).expect("the runtime does not end");
}
