//! The helpers of the cases.

use std::future::poll_fn;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_core::backend::{AcquireRequest, Acquired, LeasePolicy, Wait};
use lock_core::{Error, Lease, LockName, Locks, OwnerInfo, Released, Result};
use tokio::time::Instant;

use super::Harness;
use super::client::Client;
use super::held::Held;

/// A lease longer than any pause of a noisy machine.
pub(super) const LONG: Duration = Duration::from_secs(10);
/// The limit for a few round trips.
pub(super) const SOON: Duration = Duration::from_secs(6);
/// The limit for what ends with a timeout of the backend.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// The limit for a connection: the first one also starts the servers.
const START: Duration = Duration::from_secs(90);
/// How late a noisy machine may be.
pub(super) const NOISE: Duration = Duration::from_millis(300);
/// How late anything may happen on a busy machine.
pub(super) const LATE: Duration = Duration::from_secs(2);
/// How much longer than its lease a lock may last: servers check for expired sessions now and then, and waiters poll.
pub(super) const LEASE_SLACK: Duration = Duration::from_secs(4);
/// The pause between two checks.
pub(super) const LOOK: Duration = Duration::from_millis(5);

/// A new lock name.
pub(super) fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let random = lock_core::OwnerId::random().to_string();
    format!("t{}x{}x{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed), &random[..8])
}

/// A client with long leases.
pub(super) async fn client(harness: &dyn Harness) -> Client {
    client_with(harness, LONG).await
}

/// A client with short leases.
pub(super) async fn short_client(harness: &dyn Harness) -> Client {
    client_with(harness, harness.short_lease()).await
}

pub(super) async fn client_with(harness: &dyn Harness, lease: Duration) -> Client {
    let connected = within(START, "the connection", harness.connect(lease)).await;
    let locks = connected.unwrap_or_else(|error| panic!("cannot connect: {error:?}"));
    Client::new(locks, harness.handle())
}

/// Waits for a future, which must complete in this time.
pub(super) async fn within<F: Future + Send>(limit: Duration, what: &str, future: F) -> F::Output {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}

/// Deletes all locks that the harness' handle of this name acquires from the store.
pub(super) async fn delete_behind_the_back(harness: &dyn Harness, name: &str) {
    // The longer names first: a harness may delete all that contains the name.
    for name in harness.handle().names(name).into_iter().rev() {
        harness.delete_behind_the_back(&name).await;
    }
}

/// Polls until there is a result, which must happen in this time.
pub(super) async fn eventually<T, L, F>(limit: Duration, what: &str, mut look: L) -> T
where
    T: Send,
    L: FnMut() -> F + Send,
    F: Future<Output = Option<T>> + Send,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = within(PATIENCE, what, look()).await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} for {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Acquires a lock that must be free now or in a moment.
pub(super) async fn take(locks: &Client, name: &str) -> Held {
    take_within(SOON, locks, name).await
}

pub(super) async fn take_within(limit: Duration, locks: &Client, name: &str) -> Held {
    let acquired = within(limit, "the lock", locks.mutex(name).acquire()).await;
    acquired.unwrap_or_else(|error| panic!("cannot acquire: {error:?}"))
}

/// The answer to an acquisition with hardly any patience. If a noisy machine takes longer for it, it is asked again.
pub(super) async fn answered<T, F>(locks: &Locks, ask: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        match ask().await {
            Err(error) if error.code() == "timeout" => locks.backend().settle().await,
            answer => return answer,
        }
    }
}

/// Acquires a lock if it is free.
pub(super) async fn try_take(locks: &Client, name: &str) -> Option<Held> {
    let acquired = within(SOON, "the answer of try_acquire", locks.mutex(name).try_acquire()).await;
    acquired.unwrap_or_else(|error| panic!("contention is not an error: {error:?}"))
}

pub(super) async fn must_be_busy(locks: &Client, name: &str) {
    let guard = try_take(locks, name).await;
    assert!(guard.is_none(), "two hold the lock {name:?}: the second got {guard:?}");
}

/// The error names this backend, or one that it is made of.
pub(super) fn must_be_of(error: &Error, harness: &dyn Harness) {
    let backend = harness.capabilities().backend;
    assert!(error.backend() == backend || harness.parts().contains(&error.backend()), "{error:?}");
}

/// Waits until so many stand in the queue, as far as the backend tells.
pub(super) async fn wait_for_waiters(locks: &Client, name: &str, count: usize) {
    if !locks.capabilities().counts_waiters {
        return tokio::time::sleep(NOISE).await;
    }
    let sees = || async { (locks.inspect(name).await.unwrap().waiters >= count).then_some(()) };
    eventually(SOON, &format!("{count} waiters in sight"), sees).await;
}

/// Waits until the store shows that somebody waits for a lock, which has one holder.
pub(super) async fn wait_until_shown(store: &dyn Harness, locks: &Client, name: &str) {
    if locks.capabilities().counts_waiters {
        return wait_for_waiters(locks, name, 1).await;
    }
    let is_shown = || async { (store.leftovers(name).await.len() > 1).then_some(()) };
    eventually(PATIENCE, "a waiter in the store", is_shown).await;
}

/// Releases a lock that must still be held.
pub(super) async fn give_back(guard: impl Into<Held>) {
    let guard = guard.into();
    let name = guard.name().clone();
    let released = within(SOON, "the release", guard.release()).await;
    assert!(matches!(released, Ok(Released::Released)), "the release of {name:?} answered {released:?}");
}

/// Waits until the store keeps nothing for this lock.
pub(super) async fn nothing_left(harness: &dyn Harness, part: &str) {
    at_most_left(harness, part, 0).await;
}

/// Waits until the store keeps for this lock only what its `holders` hold.
pub(super) async fn at_most_left(harness: &dyn Harness, part: &str, holders: usize) {
    let deadline = Instant::now() + SOON;
    let holds = holders * harness.handle().names(part).len();
    loop {
        let left = harness.leftovers(part).await;
        if left.len() <= holds {
            return;
        }
        assert!(Instant::now() < deadline, "left behind, where only {holders} may be: {left:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Acquires through the `Backend` trait, as handles do.
pub(super) async fn take_lease(locks: &Client, name: &str, lease: LeasePolicy) -> Box<dyn Lease> {
    let name = LockName::new(name).expect("the name is valid");
    let owner = OwnerInfo::this_process().into();
    let request = AcquireRequest::exclusive(name, Wait::Forever, lease, owner).in_mode(locks.handle().mode());
    match within(SOON, "the lock", locks.backend().acquire(request)).await {
        Ok(Acquired::Held(lease)) => lease,
        other => panic!("a free lock was not granted: {other:?}"),
    }
}

/// The longest of three round trips.
pub(super) async fn round_trip(locks: &Client, name: &str) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let start = Instant::now();
        locks.inspect(name).await.unwrap_or_else(|error| panic!("cannot inspect: {error:?}"));
        longest = longest.max(start.elapsed());
    }
    longest
}

/// Polls a future once, and returns its output if that ends it.
pub(super) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Polls the future for this time, once at least.
pub(super) async fn poll_for<F: Future + Unpin>(time: Duration, future: &mut F) -> Option<F::Output> {
    tokio::time::timeout(time, future).await.ok()
}

/// Polls a future at most so many times.
pub(super) async fn poll_times<F: Future + Unpin>(times: usize, future: &mut F) -> Option<F::Output> {
    let mut left = times;
    poll_fn(|context| {
        left -= 1;
        match Pin::new(&mut *future).poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
