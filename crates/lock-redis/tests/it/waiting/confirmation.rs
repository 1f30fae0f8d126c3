//! A lock that is handed over comes with a message, before the server has confirmed that it is held. What may happen in between
//! is in the simulation.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, LockOptions, LossReason, Mutex};
use lock_testkit::proxy::Direction;
use lock_testkit::{RedisServer, acquiring, come, give_back, queue_up, soon, take, until};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::common::{Link, client, nothing_is_left, queue_is};

/// How long a lock is kept for a waiter that has not confirmed it.
// Time: it is what these tests are about.
const GRACE: Duration = Duration::from_secs(1);
/// Of other leases.
const TTL: Duration = Duration::from_secs(60);

/// A waiter to which the lock is handed over, this long after it queued up, when its requests no longer arrive.
async fn handed_over(link: &Link, mutex: Mutex, after: Duration) -> JoinHandle<Guard> {
    let holder = take(&link.direct().await, "a").await;
    let waiter = acquiring(mutex);
    queue_is(&link.redis, 1).await;
    link.proxy.hold(Direction::ToServer);
    // Time: a message that comes late proves less.
    sleep(after).await;
    give_back(holder).await;
    waiter
}

/// Hands the lock over to a client whose confirmation is held up, until it has come with the message some times: a busy host may
/// take so long that the confirmation is waited for. `then` lets requests through again, and ends the guard.
async fn comes_with_the_message(mut then: impl AsyncFnMut(&Link, Guard)) {
    let link = Link::with("ttl=60s").await;
    let mut came = 0;
    for _ in 0..20 {
        let mut waiter = handed_over(&link, link.locks.mutex("a"), Duration::ZERO).await;
        // Time: what comes later comes with the confirmation.
        if let Ok(guard) = timeout(GRACE, &mut waiter).await {
            came += 1;
            then(&link, guard.unwrap()).await;
        } else {
            link.proxy.deliver();
            give_back(come(waiter).await).await;
        }
        link.nothing_is_left().await;
        if came == 5 {
            return;
        }
    }
    panic!("it came with the message {came} times");
}

/// Demands that this lock is not acquired before the requests arrive.
async fn is_confirmed_first(mutex: impl FnOnce(&Link) -> Mutex, after: Duration) {
    let link = Link::with("ttl=60s").await;
    let mut waiter = handed_over(&link, mutex(&link), after).await;
    // Time: a message alone would have come by then.
    assert!(timeout(GRACE * 2, &mut waiter).await.is_err(), "it was not asked for");
    link.proxy.deliver();
    give_back(come(waiter).await).await;
    link.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_soon_is_held_before_it_is_confirmed() {
    comes_with_the_message(async |link, guard| {
        assert!(guard.remaining() < GRACE, "{:?}", guard.remaining());
        link.proxy.deliver();
        until("it is confirmed", async || !guard.is_valid() || guard.remaining() > TTL / 2).await;
        // Unless the host has stood still in between.
        match guard.is_valid() {
            true => give_back(guard).await,
            false => drop(guard),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_never_confirmed_is_lost_in_time() {
    let mut extends = false;
    comes_with_the_message(async |link, guard| {
        extends = !extends;
        if extends {
            let error = soon(guard.extend(TTL)).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
        }
        assert_eq!(soon(guard.lost()).await, LossReason::DeadlinePassed);
        link.proxy.deliver();
        drop(guard);
        give_back(take(&link.direct().await, "a").await).await;
    })
    .await;
}

/// Its time to live is its own, and a renewal would begin it anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_renewed_is_not_held_before_it_is_confirmed() {
    let fixed = LockOptions::new().fixed_ttl(TTL);
    is_confirmed_first(|link| link.locks.mutex_with("a", fixed).unwrap(), Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_late_is_not_held_before_it_is_confirmed() {
    is_confirmed_first(|link| link.locks.mutex("a"), GRACE / 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_replicas_are_to_have_is_not_held_by_the_message_alone() {
    let redis = RedisServer::start().await.unwrap();
    let holder = take(&client(&redis, "ttl=60s").await, "a").await;
    let mut waiter = queue_up(&client(&redis, "ttl=60s&wait_replicas=1").await, "a").await;
    give_back(holder).await;
    // Time: the message alone would have come by then.
    assert!(timeout(GRACE * 2, &mut waiter).await.is_err(), "no replica has it");
    waiter.abort();
    nothing_is_left(&redis).await;
}
