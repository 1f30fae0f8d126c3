//! Extensions that a master executes late.

use lock_core::LockOptions;
use lock_testkit::take;
use tokio::time::{sleep, timeout};

use super::SECOND;
use super::fleet::Fleet;

/// Each of two masters gets an extension that shortens the lease only after its connection was given up, and a longer one over
/// the next.
#[tokio::test(start_paused = true)]
async fn a_shorter_extension_that_arrives_late_does_not_undo_a_longer_one() {
    let fleet = Fleet::new(3).await;
    let (locks, other) = (fleet.connect(60 * SECOND).await, fleet.connect(2 * SECOND).await);
    let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(20 * SECOND)).unwrap();
    let guard = mutex.acquire().await.unwrap();
    for (master, shorter) in [(0, 12 * SECOND), (1, 6 * SECOND)] {
        fleet.links[master][0].stall(30 * SECOND);
        guard.extend(shorter).await.unwrap();
        // By now the master is asked over another connection.
        sleep(2 * SECOND).await;
    }
    // The third master alone would keep it for longer.
    let (now, until) = (guard.valid_until(), guard.extend(60 * SECOND).await.unwrap());
    assert!(until > now && until < now + 12 * SECOND, "{until:?} after {now:?}");
    let next = timeout(100 * SECOND, other.mutex("a").acquire()).await.unwrap().unwrap();
    assert!(!guard.is_valid(), "two valid guards: {guard:?} and {next:?}");
}

/// Two masters have lost extensions that do not shorten the lease: whenever they execute them, a longer one stays.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_arrives_late_does_not_undo_a_longer_extension() {
    let fleet = Fleet::new(3).await;
    let (locks, other) = (fleet.connect(60 * SECOND).await, fleet.connect(2 * SECOND).await);
    let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(6 * SECOND)).unwrap();
    let guard = mutex.acquire().await.unwrap();
    for master in 0..2 {
        sleep(SECOND).await;
        fleet.links[master][0].stall(10 * SECOND);
        guard.extend(6 * SECOND).await.unwrap();
        sleep(2 * SECOND).await;
    }
    let (now, until) = (guard.valid_until(), guard.extend(60 * SECOND).await.unwrap());
    assert!(until > now + 50 * SECOND, "{until:?} after {now:?}");
    let next = timeout(50 * SECOND, other.mutex("a").acquire()).await;
    assert!(next.is_err() && guard.is_valid(), "two valid guards: {guard:?} and {next:?}");
}

/// A quorum has confirmed the lease. Of the next renewal, one of its masters does not answer, and the votes of the others are limited by
/// extensions that they may still execute.
#[tokio::test(start_paused = true)]
async fn a_renewal_takes_nothing_back_that_was_confirmed() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(60 * SECOND)).unwrap();
    let guard = mutex.acquire().await.unwrap();
    for (master, shorter) in [(0, 12 * SECOND), (1, 6 * SECOND)] {
        fleet.links[master][0].stall(30 * SECOND);
        guard.extend(shorter).await.unwrap();
        sleep(2 * SECOND).await;
    }
    let confirmed = guard.extend(60 * SECOND).await.unwrap();
    fleet.links[4][0].stall(10 * SECOND);
    let until = guard.extend(60 * SECOND).await.unwrap();
    assert!(until + SECOND > confirmed && guard.valid_until() == until, "{until:?} after {confirmed:?}");
    sleep(30 * SECOND).await;
    assert!(guard.is_valid(), "{guard:?}");
}

/// Two masters have lost short extensions, and may execute them at any time: what they confirm later counts no longer than that.
#[tokio::test(start_paused = true)]
async fn a_lease_that_masters_may_shorten_is_renewed_in_time() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    for (master, shorter) in [(0, 12 * SECOND), (1, 6 * SECOND)] {
        fleet.links[master][0].stall(5 * SECOND);
        guard.extend(shorter).await.unwrap();
        sleep(2 * SECOND).await;
    }
    sleep(60 * SECOND).await;
    guard.extend(60 * SECOND).await.unwrap();
    sleep(60 * SECOND).await;
    assert!(guard.is_valid(), "lost on healthy masters: {guard:?}");
}
