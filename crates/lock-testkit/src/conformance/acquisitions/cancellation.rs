//! Futures that are dropped at any await.

use std::time::Duration;

use lock_core::backend::LeasePolicy;
use lock_core::{GuardState, LockOptions, Released};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::conformance::Harness;
use crate::conformance::helpers::{
    LEASE_SLACK, LONG, NOISE, SOON, at_most_left, client, fresh, give_back, must_be_busy, nothing_left,
    poll_for, poll_once, poll_times, short_client, take, take_lease, take_within, within,
};
use crate::helpers::cancel::cancel_after;

/// No operation is polled nearly as often.
const MOST_POLLS: usize = 1_000;

pub(crate) async fn a_cancelled_acquire_of_a_free_lock_leaves_nothing(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    // How often a future is polled differs a little from one time to the next.
    for _ in 0..3 {
        let mut done = false;
        for k in 0..MOST_POLLS {
            let mutex = one.mutex(&name);
            let acquired = within(SOON, "the lock", cancel_after(k, mutex.acquire())).await;
            done = acquired.is_some();
            drop(acquired.transpose().unwrap());
            // Neither for this client, nor for others, nor on the server.
            give_back(take(&one, &name).await).await;
            give_back(take(&two, &name).await).await;
            nothing_left(harness, &name).await;
            if done {
                break;
            }
        }
        assert!(done, "the lock was not acquired after {MOST_POLLS} polls");
    }
}

pub(crate) async fn a_cancelled_wait_leaves_nothing(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let guard = take(&one, &name).await;
    let mut done = false;
    for k in 0..MOST_POLLS {
        // Long enough for the waiter to join the wait queue.
        let waiting = two.mutex(&name);
        let waiting = waiting.try_acquire_for(NOISE);
        let waited = within(SOON, "the deadline", cancel_after(k, waiting)).await;
        done = waited.is_some();
        assert!(waited.transpose().unwrap().flatten().is_none(), "two hold the lock");
        assert!(guard.is_valid());
        at_most_left(harness, &name, 1).await;
        if done {
            break;
        }
    }
    assert!(done, "the deadline was not kept after {MOST_POLLS} polls");
    give_back(guard).await;
    // A waiter that was left would get the lock now and keep it.
    give_back(take(&one, &name).await).await;
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_wait_cancelled_during_the_hand_over_leaves_nothing(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    for round in 0..30 {
        let guard = take(&one, &name).await;
        let mutex = two.mutex(&name);
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        sleep(Duration::from_millis(10)).await;
        let release = tokio::spawn(guard.release());
        sleep(Duration::from_micros(150 * round)).await;
        waiter.abort();
        // The grant may have been first: then the guard is dropped here.
        drop(waiter.await.map(Result::unwrap));
        within(SOON, "the release", release).await.unwrap().unwrap();
        give_back(take(&one, &name).await).await;
        give_back(take(&two, &name).await).await;
        nothing_left(harness, &name).await;
    }
}

pub(crate) async fn a_cancelled_release_still_releases(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut done = false;
    for k in 0..MOST_POLLS {
        let guard = take(&one, &name).await;
        let released = within(SOON, "the release", cancel_after(k, guard.release())).await;
        done = released.is_some();
        released.transpose().unwrap();
        give_back(take(&two, &name).await).await;
        nothing_left(harness, &name).await;
        if done {
            break;
        }
    }
    assert!(done, "not released after {MOST_POLLS} polls");

    // By the backend's own trait: a release that was dropped may be called again.
    for k in 0..MOST_POLLS {
        let mut lease = take_lease(&one, &name, LeasePolicy::default()).await;
        let released = within(SOON, "the release", cancel_after(k, lease.release())).await;
        if released.is_none() {
            within(SOON, "the second release", lease.release()).await.unwrap();
        }
        give_back(take(&two, &name).await).await;
        nothing_left(harness, &name).await;
        if released.is_some() {
            return;
        }
    }
    panic!("not released after {MOST_POLLS} polls");
}

pub(crate) async fn a_cancelled_extend_leaves_the_lease_usable(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut done = false;
    for k in 0..MOST_POLLS {
        let mutex = one.mutex_with(&name, LockOptions::new().fixed_ttl(LONG)).unwrap();
        let guard = within(SOON, "the lock", mutex.acquire()).await.unwrap();
        let before = guard.valid_until();
        let extended = within(SOON, "the extension", cancel_after(k, guard.extend(2 * LONG))).await;
        done = extended.is_some();
        let until = extended.transpose().unwrap();
        assert!(guard.valid_until() >= until.unwrap_or(before));
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        must_be_busy(&two, &name).await;
        // Again, to the end: the dropped extension does no harm.
        let until = within(SOON, "the extension", guard.extend(2 * LONG)).await.unwrap();
        // The deadline of a session advances by itself.
        assert!(until >= before);
        give_back(guard).await;
        give_back(take(&two, &name).await).await;
        nothing_left(harness, &name).await;
        if done {
            break;
        }
    }
    assert!(done, "not extended after {MOST_POLLS} polls");
    drop((one, two));
}

/// As in a loop of `select!` that is busy with another branch.
pub(crate) async fn a_waiter_that_is_not_polled_stops_nobody(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (held, mutex) = (take(&one, &name).await, one.mutex(&name));
    let mut waiter = Box::pin(mutex.acquire());
    assert!(poll_for(Duration::ZERO, &mut waiter).await.is_none(), "two hold the lock");
    // To that waiter, by a hand-over.
    give_back(held).await;
    give_back(take_within(LONG, &two, &name).await).await;
    give_back(take_within(LONG, &one, &name).await).await;
    give_back(within(SOON, "the lock", waiter).await.unwrap()).await;
    nothing_left(harness, &name).await;
}

/// Neither tasks of its client nor others.
pub(crate) async fn a_release_that_is_not_polled_stops_nobody(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    for next in [&one, &two] {
        let mut release = Box::pin(take(&one, &name).await.release());
        let mut released = poll_once(&mut release).await;
        give_back(take_within(LONG, next, &name).await).await;
        if released.is_none() {
            released = Some(within(SOON, "the release", release).await);
        }
        assert_eq!(released.transpose().unwrap(), Some(Released::Released));
        nothing_left(harness, &name).await;
    }
}

pub(crate) async fn a_waiter_in_the_store_that_is_not_polled_stops_nobody(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let (held, mutex) = (take(&two, &name).await, one.mutex(&name));
    let mut waiter = Box::pin(mutex.acquire());
    assert!(poll_for(NOISE, &mut waiter).await.is_none(), "two hold the lock");
    give_back(held).await;
    give_back(take_within(LONG, &two, &name).await).await;
    give_back(within(SOON, "the lock", waiter).await.unwrap()).await;
    nothing_left(harness, &name).await;
}

/// What it was granted in the last poll ends with its lease: nothing renews it.
pub(crate) async fn a_waiter_that_is_not_polled_during_the_hand_over_stops_nobody(harness: &dyn Harness) {
    let (one, two) = (short_client(harness).await, short_client(harness).await);
    let limit = harness.short_lease() + LEASE_SLACK;
    let mut waiters = JoinSet::new();
    for polls in 1..=8 {
        let (one, two, name) = (one.clone(), two.clone(), fresh());
        waiters.spawn(async move {
            let (held, mutex) = (take(&two, &name).await, one.mutex(&name));
            let mut waiter = Box::pin(mutex.acquire());
            assert!(poll_for(NOISE, &mut waiter).await.is_none(), "two hold the lock");
            give_back(held).await;
            let granted = timeout(SOON, poll_times(polls, &mut waiter)).await.ok().flatten();
            let guard = match granted {
                Some(granted) => granted,
                None => {
                    give_back(take_within(limit, &two, &name).await).await;
                    within(LONG, "the lock", waiter).await
                }
            };
            give_back(guard.unwrap()).await;
            name
        });
    }
    for name in waiters.join_all().await {
        nothing_left(harness, &name).await;
    }
}
