//! Servers that are unreachable or silent, and recover.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Error, ErrorKind, GuardState, LockOptions, Outcome, Persistence, Released};
use tokio::time::{Instant, sleep};

use crate::conformance::client::Client;
use crate::conformance::guards::lifetime::follow;
use crate::conformance::held::Held;
use crate::conformance::helpers::{
    LATE, LEASE_SLACK, LONG, LOOK, NOISE, PATIENCE, SOON, at_most_left, client, client_with, eventually,
    fresh, give_back, must_be_busy, must_be_of, nothing_left, short_client, take, take_within,
    wait_for_waiters, within,
};
use crate::conformance::{Fault, Harness};

/// How much longer than its patience an acquisition takes at most.
const GIVES_UP_AFTER: Duration = Duration::from_millis(100);

pub(crate) async fn a_dead_server_is_reported_at_connect(harness: &dyn Harness) {
    let link = harness.link().await;
    link.fault(Fault::Cut).await;
    let connected = within(PATIENCE, "the failure to connect", link.connect(LONG)).await;
    must_be_unavailable(&connected.map(drop).unwrap_err(), harness);
    link.fault(Fault::None).await;
    let (locks, name) = (client(&*link).await, fresh());
    give_back(take(&locks, &name).await).await;
}

pub(crate) async fn fails_and_recovers(harness: &dyn Harness, fault: Fault) {
    let (link, direct, name) = (harness.link().await, client(harness).await, fresh());
    let (lease, cleaned_up) = if direct.capabilities().lease.is_session() {
        (harness.short_lease(), harness.short_lease() + LEASE_SLACK)
    } else {
        // Long enough that nothing expires before the case ends.
        (3 * LONG, SOON)
    };
    let locks = client_with(&*link, lease).await;
    give_back(take(&locks, &name).await).await;

    link.fault(fault).await;
    let acquired = within(PATIENCE, "the failure to acquire", locks.mutex(&name).acquire()).await;
    let error = acquired.expect_err("the server does not answer");
    must_be_unavailable(&error, harness);
    assert_eq!(error.lock().map(|name| name.as_str()), Some(name.as_str()), "{error}");
    let limit = locks.capabilities().answer_timeout + GIVES_UP_AFTER + LATE;
    let tried = within(limit, "the failure to try", locks.mutex(&name).try_acquire()).await;
    must_be_unavailable(&tried.expect_err("an outage is no contention"), harness);
    let looked = within(PATIENCE, "the failure to inspect", locks.inspect(&name)).await;
    must_be_unavailable(&looked.expect_err("the server does not answer"), harness);

    link.fault(Fault::None).await;
    // What may have reached the server is rolled back, or ends with its session.
    let next = take_within(cleaned_up, &direct, &name).await;
    at_most_left(harness, &name, 1).await;
    give_back(next).await;
    // And the client recovers by itself.
    let recovered =
        eventually(PATIENCE, "the client to recover", || async { locks.mutex(&name).acquire().await.ok() });
    give_back(recovered.await).await;
    nothing_left(harness, &name).await;
    // No request of the outage arrives late.
    sleep(Duration::from_millis(1_500)).await;
    nothing_left(harness, &name).await;
    give_back(take(&direct, &name).await).await;
}

/// As after a long idle time: the first request is not answered. The lock that is held, and the session, go on.
pub(crate) async fn a_forgotten_connection_is_replaced(harness: &dyn Harness) {
    let (link, name, held) = (harness.link().await, fresh(), fresh());
    let locks = client_with(&*link, 3 * LONG).await;
    let guard = take(&locks, &held).await;
    give_back(take(&locks, &name).await).await;
    link.fault(Fault::Forget).await;
    give_back(take_within(PATIENCE, &locks, &name).await).await;
    link.fault(Fault::Forget).await;
    let tried = within(PATIENCE, "the lock", locks.mutex(&name).try_acquire_for(PATIENCE)).await;
    give_back(tried.expect("new connections work").expect("nobody has the lock")).await;
    nothing_left(harness, &name).await;
    within(PATIENCE, "the release", guard.release()).await.expect("new connections work");
    nothing_left(harness, &held).await;
}

pub(crate) async fn patience_ends_at_a_silent_server(harness: &dyn Harness) {
    let (link, direct, name) = (harness.link().await, client(harness).await, fresh());
    let locks = client(&*link).await;
    give_back(take(&locks, &name).await).await;
    link.fault(Fault::Hold).await;
    for patience in [NOISE / 3, Duration::ZERO] {
        let (mutex, start) = (locks.mutex(&name), Instant::now());
        let tried = within(PATIENCE, "the end of the patience", mutex.try_acquire_for(patience));
        let error = tried.await.expect_err("what a silent server does not say is no contention");
        let took = start.elapsed();
        assert!(took < patience + GIVES_UP_AFTER + LATE, "{took:?} instead of {patience:?}");
        must_be_unavailable(&error, harness);
        assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
    }
    link.fault(Fault::None).await;
    // Every request has reached the server now, and is rolled back.
    within(PATIENCE, "the roll-back", locks.backend().settle()).await;
    nothing_left(harness, &name).await;
    for locks in [&direct, &locks] {
        give_back(take(locks, &name).await).await;
    }
    nothing_left(harness, &name).await;
}

/// A busy lock is not reported as an outage.
pub(crate) async fn a_waiter_at_a_server_that_falls_silent_gives_up_without_an_error(harness: &dyn Harness) {
    let (link, direct, name) = (harness.link().await, client(harness).await, fresh());
    let locks = client(&*link).await;
    let guard = take(&direct, &name).await;
    let (mutex, patience) = (locks.mutex(&name), 3 * NOISE);
    let waiter = tokio::spawn(async move {
        let start = Instant::now();
        (mutex.try_acquire_for(patience).await, start.elapsed())
    });
    wait_for_waiters(&direct, &name, 1).await;
    link.fault(Fault::Hold).await;
    let (waited, took) = within(PATIENCE, "the deadline", waiter).await.unwrap();
    assert!(waited.expect("the lock is known to be busy").is_none(), "two hold the lock");
    assert!(took >= patience && took < patience + GIVES_UP_AFTER + LATE, "{took:?} instead of {patience:?}");
    link.fault(Fault::None).await;
    within(PATIENCE, "the roll-back", locks.backend().settle()).await;
    at_most_left(harness, &name, 1).await;
    give_back(guard).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_waiter_rides_out_a_short_outage(harness: &dyn Harness) {
    let (link, name) = (harness.link().await, fresh());
    let (direct, locks) = (client(harness).await, client_with(&*link, Duration::from_secs(6)).await);
    let guard = take(&direct, &name).await;
    let mutex = locks.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    wait_for_waiters(&direct, &name, 1).await;
    link.fault(Fault::Cut).await;
    sleep(Duration::from_millis(800)).await;
    link.fault(Fault::None).await;
    sleep(NOISE).await;
    assert!(!waiter.is_finished(), "the wait ended with {:?}", waiter.await);
    assert!(guard.is_valid());
    give_back(guard).await;
    let next = within(PATIENCE, "the waiter to get the lock", waiter).await.unwrap();
    give_back(next.unwrap_or_else(|error| panic!("a short outage ended the wait: {error:?}"))).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_long_outage_ends_strict_waits_alone(harness: &dyn Harness) {
    let (link, name) = (harness.link().await, fresh());
    let direct = client(harness).await;
    let (strict, patient) = (short_client(&*link).await, short_client(&*link).await);
    let guard = take(&direct, &name).await;
    let options = LockOptions::new().persistence(Persistence::Strict);
    let mutexes = [strict.mutex_with(&name, options).unwrap(), patient.mutex(&name)];
    let [strict, patient] = mutexes.map(|mutex| tokio::spawn(async move { mutex.acquire().await }));
    wait_for_waiters(&direct, &name, 2).await;
    assert!(!strict.is_finished(), "the wait ended with {:?}", strict.await);
    link.fault(Fault::Cut).await;
    let ended = within(PATIENCE, "the end of the strict wait", strict).await.unwrap();
    must_be_unavailable(&ended.expect_err("the server is unreachable"), harness);
    // Its queue entry expires with its session, as the client cannot close it.
    let limit = harness.short_lease() + LEASE_SLACK;
    sleep(limit.saturating_sub(SOON)).await;
    at_most_left(harness, &name, 1).await;
    assert!(!patient.is_finished(), "the other wait ended with {:?}", patient.await);
    link.fault(Fault::None).await;
    give_back(guard).await;
    let next = within(PATIENCE, "the other waiter to get the lock", patient).await.unwrap();
    give_back(next.unwrap_or_else(|error| panic!("a long outage ended the wait: {error:?}"))).await;
    give_back(take(&direct, &name).await).await;
}

pub(crate) async fn a_waiter_cut_off_for_long_jumps_no_queue(harness: &dyn Harness) {
    let (link, name) = (harness.link().await, fresh());
    let (one, two, locks) = (client(harness).await, client(harness).await, short_client(&*link).await);
    let guard = take(&one, &name).await;
    let mutex = locks.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    sleep(NOISE).await;
    link.fault(Fault::Cut).await;
    sleep(2 * harness.short_lease()).await;
    give_back(guard).await;
    let next = take_within(harness.short_lease() + LEASE_SLACK, &two, &name).await;
    link.fault(Fault::None).await;
    // The waiter may have given up or still wait, but must not act on a notification from before the outage.
    let deadline = Instant::now() + harness.short_lease() + Duration::from_secs(1);
    while Instant::now() < deadline {
        assert!(next.is_valid());
        if waiter.is_finished() {
            break;
        }
        sleep(LOOK).await;
    }
    if waiter.is_finished() {
        let ended = waiter.await.unwrap();
        must_be_unavailable(&ended.expect_err("another has the lock"), harness);
        give_back(next).await;
    } else {
        give_back(next).await;
        match within(PATIENCE, "the end of the wait", waiter).await.unwrap() {
            Ok(late) => give_back(late).await,
            Err(error) => must_be_unavailable(&error, harness),
        }
    }
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_holder_that_is_cut_off_suspects_a_loss_and_loses(harness: &dyn Harness) {
    let suspected = loses(harness, Fault::Cut).await;
    assert!(suspected, "the guard never became suspect");
}

pub(crate) async fn a_holder_of_a_silent_server_loses(harness: &dyn Harness) {
    // While an answer may still arrive, the guard need not become suspect before the deadline.
    loses(harness, Fault::Hold).await;
}

/// Whether the guard was suspect before it was lost.
async fn loses(harness: &dyn Harness, fault: Fault) -> bool {
    let link = harness.link().await;
    // Long enough that a refused renewal is noticed before the deadline.
    let lease = 2 * harness.short_lease();
    let (locks, direct, name) = (client_with(&*link, lease).await, client(harness).await, fresh());
    let guard = Arc::new(take(&locks, &name).await);
    let next = follow(&direct, &name, &guard);
    sleep(lease).await;
    assert_eq!(guard.state(), GuardState::Valid, "renewed");

    link.fault(fault).await;
    // A reply may have been on its way, but no request is answered from here on.
    let end = Clock::boot().now() + lease;
    let mut suspected = false;
    while guard.is_valid() {
        suspected |= guard.state() == GuardState::Suspect;
        let now = Clock::boot().now();
        assert!(now <= end + NOISE, "valid, though not renewed for {lease:?}");
        assert!(
            guard.valid_until() <= end,
            "the deadline is {:?}, and the lease ends at {end:?} at the latest",
            guard.valid_until()
        );
        sleep(LOOK).await;
    }
    let next = within(lease + LEASE_SLACK, "the next holder", next).await.unwrap();
    assert!(next.token() > guard.token());

    link.fault(Fault::None).await;
    sleep(lease / 2).await;
    assert!(matches!(guard.state(), GuardState::Lost(_)), "a lost lock came back");
    must_be_busy(&direct, &name).await;
    let guard = Arc::into_inner(guard).expect("the only reference");
    let released = within(PATIENCE, "the release", guard.release()).await;
    assert!(matches!(released, Ok(Released::AlreadyLost) | Err(_)), "{released:?}");
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "the late release freed the next holder");
    give_back(next).await;
    nothing_left(harness, &name).await;
    suspected
}

pub(crate) async fn a_release_ends_during_an_outage(harness: &dyn Harness) {
    for fault in [Fault::Cut, Fault::LoseReplies] {
        let link = harness.link().await;
        let (locks, direct, name) = (client(&*link).await, client(harness).await, fresh());
        let guard = take(&locks, &name).await;
        link.fault(fault).await;
        let released = within(PATIENCE, "the end of the release", guard.release()).await;
        match released {
            Ok(Released::AlreadyLost) => {}
            Ok(_) => panic!("{fault:?}: the release cannot be known to be executed"),
            Err(error) => must_be_unavailable(&error, harness),
        }
        link.fault(Fault::None).await;
        give_back(take_within(LONG + LEASE_SLACK, &direct, &name).await).await;
        nothing_left(harness, &name).await;
    }
}

pub(crate) async fn a_drop_during_an_outage_releases_in_the_end(harness: &dyn Harness) {
    let link = harness.link().await;
    let (locks, direct, name) = (client_with(&*link, 3 * LONG).await, client(harness).await, fresh());
    let guard = take(&locks, &name).await;
    link.fault(Fault::Cut).await;
    drop(guard);
    sleep(Duration::from_millis(500)).await;
    link.fault(Fault::None).await;
    // Well before the lease would have ended.
    give_back(take_within(LONG, &direct, &name).await).await;
    nothing_left(harness, &name).await;
}

pub(crate) async fn a_restart_keeps_locks_and_tokens(harness: &dyn Harness) {
    let store = harness.private().await;
    let lease = Duration::from_secs(6);
    let (one, two, name) = (client_with(&*store, lease).await, client_with(&*store, lease).await, fresh());
    let before = take(&one, &name).await;
    let token = before.token();
    give_back(before).await;
    let guard = Arc::new(take(&one, &name).await);
    assert!(guard.token() > token);

    store.restart().await;
    let next = follow_through(&two, &name, &guard);
    sleep(Duration::from_secs(1)).await;
    let token = guard.token();
    if guard.is_valid() {
        assert!(!next.is_finished(), "the restart released a lock whose guard is valid");
    }
    drop(guard);
    // Restarted servers may not vote before the longest earlier lease has ended.
    let next = within(lease + PATIENCE, "the next holder", next).await.unwrap();
    assert!(next.token() > token, "token {} came after {token}", next.token());
    // Each client counts by itself when restarted servers vote again.
    let next = Arc::new(next);
    let last = follow_through(&one, &name, &next);
    drop(next);
    give_back(within(PATIENCE, "the first client again", last).await.unwrap()).await;
    nothing_left(&*store, &name).await;
}

/// As [`follow`], through errors.
fn follow_through(locks: &Client, name: &str, holder: &Arc<Held>) -> tokio::task::JoinHandle<Held> {
    let (mutex, holder) = (locks.mutex(name), Arc::downgrade(holder));
    tokio::spawn(async move {
        loop {
            match mutex.acquire().await {
                Ok(next) => {
                    let is_valid = holder.upgrade().is_some_and(|holder| holder.is_valid());
                    assert!(!is_valid, "the next client has the lock, and the old guard is valid");
                    return next;
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => sleep(LOOK).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    })
}

fn must_be_unavailable(error: &Error, harness: &dyn Harness) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.is_retryable());
    must_be_of(error, harness);
}
