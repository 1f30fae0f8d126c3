//! Requests and answers that come late: claims, extensions, releases, and what closing waits for.

use std::sync::Arc;

use lock_core::backend::{AcquireRequest, Acquired, LeasePolicy, Wait};
use lock_core::{Backend as _, ErrorKind, LockName, LockOptions, Outcome, OwnerInfo};
use lock_testkit::fake::Faults;
use lock_testkit::{give_back, take};
use tokio::time::{Instant, sleep, timeout};

use super::fleet::{Fleet, TIMEOUT};
use super::{MILLI, SECOND, away, cycle};

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_is_removed_however_late_it_arrives_also_where_another_one_was_granted() {
    let fleet = Fleet::new(3).await;
    let ttl = 60 * SECOND;
    let locks = fleet.connect(ttl).await;
    let [slow, _] = &fleet.links[2];
    slow.stall(ttl);
    let guard = take(&locks, "a").await;
    sleep(TIMEOUT * 3).await;
    assert!(!fleet.has_key(2), "the first claim is on its way");
    guard.extend(ttl).await.unwrap();
    sleep(SECOND).await;
    assert!(fleet.has_key(2), "it was claimed again, on another connection");
    give_back(guard).await;
    sleep(SECOND).await;
    assert!(!fleet.has_key(2));

    slow.resume();
    let arrives = Instant::now();
    while !fleet.has_key(2) {
        assert!(arrives.elapsed() < SECOND, "the first claim never arrives");
        sleep(MILLI).await;
    }
    while fleet.has_key(2) {
        assert!(arrives.elapsed() < 5 * SECOND, "the key of an owner that has released is left");
        sleep(MILLI).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_a_hung_majority_as_long_as_any_answer_may_take() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    (0..3).for_each(|master| fleet.stall(master, 5 * SECOND));
    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("only 2 of 5 masters confirmed the release"), "{error}");
    assert!(started.elapsed() <= TIMEOUT + 10 * MILLI, "{:?}", started.elapsed());
    // It goes on in the background.
    sleep(10 * SECOND).await;
    assert!(fleet.is_free());
    let guard = locks.mutex("a").try_acquire().await.unwrap().unwrap();
    give_back(guard).await;
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_majority_that_is_late() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    (0..2).for_each(|master| fleet.stall(master, TIMEOUT / 2));
    assert!(timeout(TIMEOUT / 10, locks.mutex("a").acquire()).await.is_err());
    locks.close().await.unwrap();
    sleep(SECOND).await;
    assert!(fleet.is_free(), "the lock is left");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_confirmed_in_time_is_by_the_next_call() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    (0..2).for_each(|master| fleet.stall(master, TIMEOUT * 3 / 2));
    drop(guard);
    sleep(TIMEOUT * 3).await;
    assert!(fleet.is_free());
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some(), "the turn was given up");
}

/// The masters may have carried it out.
#[tokio::test(start_paused = true)]
async fn a_release_in_doubt_stays_so_once_the_locks_are_closed() {
    let fleet = Fleet::new(3).await;
    let (backend, _) = fleet.backend(60 * SECOND).await;
    let (name, owner) = (LockName::new("a").unwrap(), Arc::new(OwnerInfo::this_process()));
    let request = AcquireRequest::exclusive(name, Wait::Never, LeasePolicy::default(), owner);
    let Acquired::Held(mut lease) = backend.acquire(request).await.unwrap() else { panic!("it is free") };
    sleep(SECOND).await;
    (0..2).for_each(|master| fleet.stall(master, 60 * SECOND));
    let error = lease.release().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
    backend.close().await.unwrap();
    let error = lease.release().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Closed, Outcome::Unknown), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_extension_is_tried_again_for_as_long_as_the_lease_lasts() {
    let fleet = Fleet::new(5).await;
    let ttl = 30 * SECOND;
    let locks = fleet.connect(ttl).await;
    let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(ttl)).unwrap();
    let guard = mutex.acquire().await.unwrap();
    sleep(SECOND).await;
    (0..3).for_each(|master| fleet.stall(master, 20 * SECOND));
    let started = Instant::now();
    let until = guard.extend(ttl).await.unwrap();
    assert!((20..22).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert!(guard.is_valid() && until == guard.valid_until());

    (0..3).for_each(|master| fleet.stall(master, 2 * ttl));
    let (started, left) = (Instant::now(), guard.remaining());
    let error = guard.extend(ttl).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(started.elapsed() <= left + TIMEOUT, "{:?} of {left:?}", started.elapsed());
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_which_less_than_a_tenth_is_left_is_none() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(SECOND).await;
    let slow = away(460);
    fleet.set_all(&slow);
    let started = Instant::now();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied), "{error}");
    assert!(error.to_string().contains("less than a tenth of the ttl of 1s was left"), "{error}");
    assert!((0..3).all(|master| fleet.has_key(master)), "it was granted");

    fleet.set_all(&Faults::default());
    sleep(100 * MILLI).await;
    // They were granted no earlier than after half of the round trip.
    assert!(started.elapsed() < SECOND + 460 * MILLI, "{:?}", started.elapsed());
    assert!(fleet.is_free(), "it is released at once");
}

/// What masters carry out when its clean-up would have been over is cleaned up all the same.
#[tokio::test(start_paused = true)]
async fn a_claim_that_hung_masters_carry_out_late_is_taken_back() {
    let (fleet, ttl) = (Fleet::new(5).await, 2 * SECOND);
    let locks = fleet.connect(ttl).await;
    cycle(&locks).await;
    (0..3).for_each(|master| fleet.stall(master, 60 * SECOND));
    assert!(!matches!(locks.mutex("a").try_acquire().await, Ok(Some(_))));
    sleep(5 * ttl).await;
    (0..3).for_each(|master| fleet.resume(master));
    let (thawed, mut was_claimed) = (Instant::now(), false);
    while thawed.elapsed() < SECOND / 10 || !fleet.is_free() {
        was_claimed |= (0..3).any(|master| fleet.has_key(master));
        // By itself it would end after the ttl.
        assert!(thawed.elapsed() < ttl * 9 / 10, "what was carried out late stays");
        sleep(MILLI / 10).await;
    }
    assert!(was_claimed, "nothing was late");
}
