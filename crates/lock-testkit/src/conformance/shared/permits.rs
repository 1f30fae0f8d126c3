//! Semaphores.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, Guard, LockOptions};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::conformance::Harness;
use crate::conformance::helpers::{
    LEASE_SLACK, LONG, NOISE, PATIENCE, SOON, answered, client, eventually, fresh, give_back, must_be_busy,
    nothing_left, short_client, take, wait_for_waiters, within,
};
use crate::conformance::shared::sharers::Share::Permit;

pub(crate) async fn as_many_holders_as_permits(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let mut guards = Vec::new();
    for locks in [&one, &two, &one] {
        must_hold(&guards);
        guards.push(Permit(3).try_take(locks, &name).await.expect("there are three permits"));
    }
    for locks in [&one, &two] {
        Permit(3).must_be_busy(locks, &name).await;
        let waited = answered(locks, || Permit(3).take_for(locks, &name, NOISE)).await.unwrap();
        assert!(waited.is_none(), "four hold three permits: {waited:?}");
    }
    must_hold(&guards);
    // In any order, and one for one.
    give_back(guards.remove(1)).await;
    guards.push(Permit(3).try_take(&one, &name).await.expect("one permit is back"));
    Permit(3).must_be_busy(&two, &name).await;
    for guard in guards {
        must_be_busy(&two, &name).await;
        give_back(guard).await;
    }
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

fn must_hold(guards: &[Guard]) {
    assert!(guards.iter().all(Guard::is_valid), "a holder lost its permit: {guards:?}");
}

pub(crate) async fn all_clients_that_try_at_once_get_a_permit(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    for _ in 0..5 {
        let mut trying = JoinSet::new();
        for task in 0..8 {
            let (locks, semaphore) = (locks.clone(), locks.semaphore(&name, 8));
            trying.spawn(async move {
                if task % 2 == 0 {
                    semaphore.try_acquire().await
                } else {
                    answered(&locks, || semaphore.try_acquire_until(Instant::now())).await
                }
            });
        }
        let mut guards = Vec::new();
        while let Some(tried) = within(SOON, "the answers", trying.join_next()).await {
            guards.push(tried.unwrap().unwrap().expect("there is a permit for each"));
        }
        Permit(8).must_be_busy(&locks, &name).await;
        for guard in guards {
            give_back(guard).await;
        }
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_freed_permit_goes_to_the_next_waiter(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let held = [Permit(2).take(&one, &name).await, Permit(2).take(&two, &name).await];
    let mut waiters = vec![Permit(2).wait(&three, &name)];
    wait_for_waiters(&three, &name, 1).await;
    waiters.push(Permit(2).wait(&one, &name));
    wait_for_waiters(&three, &name, 2).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "both permits are out");
    let mut came = Vec::new();
    for guard in held {
        give_back(guard).await;
        let next = eventually(SOON, "a waiter to get the permit", async || {
            waiters.iter().position(|waiter| waiter.is_finished())
        });
        let next = next.await;
        assert!(next == 0 || !harness.capabilities().fifo, "not in the order in which they asked");
        came.push(waiters.remove(next).await.unwrap());
        sleep(NOISE).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one permit came back, and two took it");
        Permit(2).must_be_busy(&two, &name).await;
    }
    must_hold(&came);
    for guard in came {
        give_back(guard).await;
    }
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn an_expired_permit_goes_to_the_next_waiter(harness: &dyn Harness) {
    let (one, two, three, name) =
        (short_client(harness).await, client(harness).await, client(harness).await, fresh());
    let ttl = harness.short_lease();
    // Not renewed, so that nothing happens until the other permit expires.
    let alive = Permit(2).take_fixed(&two, &name, 6 * LONG).await;
    let dead = Permit(2).take_fixed(&one, &name, ttl).await;
    let (start, token) = (Instant::now(), dead.token());
    mem::forget(dead);
    let next = within(ttl + LEASE_SLACK, "a permit", Permit(2).wait(&three, &name)).await.unwrap();
    assert!(start.elapsed() >= ttl / 2, "a permit came back after {:?} of {ttl:?}", start.elapsed());
    assert!(next.token() > token);
    Permit(2).must_be_busy(&one, &name).await;
    assert!(alive.is_valid());
    give_back(alive).await;
    give_back(next).await;
    give_back(take(&two, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn clients_may_disagree_about_the_permits(harness: &dyn Harness) {
    let (one, two, name) = (client(harness).await, client(harness).await, fresh());
    let first = Permit(2).take(&one, &name).await;
    Permit(1).must_be_busy(&two, &name).await;
    let second = Permit(2).take(&two, &name).await;
    Permit(2).must_be_busy(&one, &name).await;
    let third = Permit(3).try_take(&one, &name).await.expect("two of three are out");
    Permit(3).must_be_busy(&two, &name).await;
    give_back(first).await;
    Permit(2).must_be_busy(&two, &name).await;
    give_back(second).await;
    let fourth = Permit(2).try_take(&two, &name).await.expect("one of two is out");
    // The one with the smallest maximum waits until all of the others have left.
    let last = Permit(1).wait(&two, &name);
    wait_for_waiters(&two, &name, 1).await;
    give_back(third).await;
    sleep(NOISE).await;
    assert!(!last.is_finished(), "one of one is out");
    give_back(fourth).await;
    give_back(within(SOON, "a permit", last).await.unwrap()).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_smaller_number_of_permits_blocks_no_larger_one(harness: &dyn Harness) {
    // As while a deployment changes the number from 2 to 6.
    let (old, new, name) = (client(harness).await, client(harness).await, fresh());
    let mut held = vec![Permit(2).take(&old, &name).await, Permit(2).take(&old, &name).await];
    let blocked = Permit(2).wait(&old, &name);
    sleep(NOISE).await;
    for _ in 0..3 {
        held.push(Permit(6).try_take(&new, &name).await.expect("two of six are out"));
    }
    held.push(Permit(6).take(&new, &name).await);
    Permit(6).must_be_busy(&new, &name).await;
    // Behind the other one and the holders.
    let waiter = Permit(6).wait(&new, &name);
    sleep(NOISE).await;
    assert!(!blocked.is_finished() && !waiter.is_finished(), "six of six are out");
    give_back(held.pop().expect("six are held")).await;
    held.push(within(SOON, "the permit that is back", waiter).await.unwrap());
    assert!(!blocked.is_finished(), "two of two are out");
    must_hold(&held);
    for guard in held {
        give_back(guard).await;
    }
    give_back(within(SOON, "a permit", blocked).await.unwrap()).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn no_larger_number_of_permits_passes_a_writer(harness: &dyn Harness) {
    let (one, two, three, name) =
        (client(harness).await, client(harness).await, client(harness).await, fresh());
    let held = Permit(1).take(&one, &name).await;
    let blocked = Permit(1).wait(&one, &name);
    sleep(NOISE).await;
    let writer = {
        let (locks, name) = (two.clone(), name.clone());
        tokio::spawn(async move { take(&locks, &name).await })
    };
    wait_for_waiters(&three, &name, 2).await;
    if harness.capabilities().fifo {
        Permit(5).must_be_busy(&three, &name).await;
    }
    give_back(held).await;
    let blocked = async { give_back(within(SOON, "a permit", blocked).await.unwrap()).await };
    let writer = async { give_back(within(SOON, "the lock", writer).await.unwrap()).await };
    tokio::join!(blocked, writer);
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_semaphore_without_permits_is_refused(harness: &dyn Harness) {
    let (locks, name) = (client(harness).await, fresh());
    for error in [
        locks.semaphore(&name, 0).acquire().await.map(drop).unwrap_err(),
        locks.semaphore(&name, 0).try_acquire().await.map(drop).unwrap_err(),
        locks.semaphore_with(&name, 0, LockOptions::new()).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(!error.is_retryable());
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn permits_are_never_exceeded(harness: &dyn Harness) {
    let (name, inside, most) = (fresh(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut running = JoinSet::new();
    for locks in [client(harness).await, client(harness).await] {
        for _ in 0..6 {
            let semaphore = locks.semaphore(&name, 3);
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            running.spawn(async move {
                for _ in 0..6 {
                    let guard = within(PATIENCE, "a permit", semaphore.acquire()).await.unwrap();
                    most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    sleep(Duration::from_millis(2)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    give_back(guard).await;
                }
            });
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no task fails");
    }
    let most = most.load(Ordering::SeqCst);
    // On a busy machine three tasks may never be inside together.
    assert!((2..=3).contains(&most), "the largest number of holders at once is {most}");
    nothing_left(harness, &name).await;
}
