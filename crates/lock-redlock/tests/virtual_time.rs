//! The real backend on masters in memory, in virtual time: what takes long, and how long it takes.

#[path = "virtual_time/fleet.rs"]
mod fleet;
#[path = "virtual_time/masks.rs"]
mod masks;

use std::time::Duration;

use lock_core::{ErrorKind, LockOptions, Released};
use tokio::time::{Instant, sleep};

use crate::fleet::{Fleet, TIMEOUT};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_is_removed_however_late_it_arrives_also_where_another_one_was_granted() {
    let fleet = Fleet::new(3).await;
    let ttl = 60 * SECOND;
    let locks = fleet.connect(ttl).await;
    let [slow, _] = &fleet.links[2];
    slow.stall(ttl);
    let guard = locks.mutex("a").acquire().await.unwrap();
    sleep(TIMEOUT * 3).await;
    assert!(!fleet.has_key(2), "the first claim is on its way");
    guard.extend(ttl).await.unwrap();
    sleep(SECOND).await;
    assert!(fleet.has_key(2), "it was claimed again, on another connection");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
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
    let guard = locks.mutex("a").acquire().await.unwrap();
    sleep(SECOND).await;
    (0..3).for_each(|master| fleet.stall(master, 5 * SECOND));
    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("only 2 of 5 masters confirmed the release"), "{error}");
    assert!(started.elapsed() <= TIMEOUT + 10 * MILLI, "{:?}", started.elapsed());
    // It goes on in the background.
    sleep(10 * SECOND).await;
    assert!((0..5).all(|master| !fleet.has_key(master)));
    let guard = locks.mutex("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_confirmed_in_time_is_by_the_next_call() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    sleep(SECOND).await;
    (0..2).for_each(|master| fleet.stall(master, TIMEOUT * 3 / 2));
    drop(guard);
    sleep(TIMEOUT * 3).await;
    assert!((0..3).all(|master| !fleet.has_key(master)));
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some(), "the turn was given up");
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
