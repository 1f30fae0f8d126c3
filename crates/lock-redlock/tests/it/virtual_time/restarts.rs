//! Masters that restart while a lock is held.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, GuardState, Locks};
use lock_testkit::{give_back, take};
use tokio::time::{Instant, sleep, timeout};

use super::SECOND;
use super::fleet::Fleet;

pub(super) const TTL: Duration = Duration::from_secs(2);
pub(super) const LONGEST: Duration = Duration::from_secs(30);

pub(super) async fn held(masters: u64) -> (Fleet, Locks, Guard) {
    let fleet = Fleet::new(masters).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let guard = take(&locks, "a").await;
    sleep(SECOND / 10).await;
    (fleet, locks, guard)
}

async fn restart(fleet: &Fleet, master: usize, with_data: bool) {
    fleet.masters[master].crash();
    sleep(SECOND * 3 / 10).await;
    fleet.masters[master].start_again(with_data);
}

async fn is_lost_in_time(guard: Guard) {
    let until = guard.valid_until();
    timeout(TTL, guard.lost()).await.unwrap();
    assert!(guard.valid_until() <= until, "extended by a master that does not count");
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_outlives_a_rolling_restart_and_a_new_one_waits_for_the_quarantine() {
    let (fleet, locks, guard) = held(5).await;
    let token = guard.token();
    let other = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let mut up_since = [Instant::now(); 5];
    for distance in [9 * SECOND, SECOND] {
        for (master, up_since) in up_since.iter_mut().enumerate() {
            restart(&fleet, master, true).await;
            *up_since = Instant::now();
            sleep(distance).await;
            assert!(guard.is_valid(), "lost when master {master} restarted");
        }
    }
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    let report = locks.doctor().await.unwrap().to_string();
    assert!(report.contains("no lock can be acquired for 2") && report.contains("15.5s apart"), "{report}");
    give_back(guard).await;
    // What is free was not granted before a restart.
    for locks in [&locks, &other] {
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let next = timeout(LONGEST * 2, locks.mutex("a").acquire()).await.unwrap().unwrap();
    let waited = up_since[2].elapsed();
    assert!((LONGEST..LONGEST + 5 * SECOND).contains(&waited), "{waited:?}");
    assert!(next.is_valid() && next.token() > token, "{next:?} after {token}");
}

/// Another holder may have had the master in between, whatever it has now.
#[tokio::test(start_paused = true)]
async fn a_restarted_master_does_not_confirm_a_lock_after_its_vote_has_expired() {
    let (fleet, _locks, guard) = held(3).await;
    let value = fleet.command(1, "GET lock:a");
    fleet.masters[0].crash();
    sleep(TTL).await;
    fleet.masters[0].start_again(true);
    drop(fleet.masters[0].command(&["SET", "lock:a", value.text().unwrap()]));
    sleep(5 * SECOND).await;
    assert!(guard.is_valid());
    fleet.masters[1].crash();
    is_lost_in_time(guard).await;
}

/// Its key there is that of a claim, which came late.
#[tokio::test(start_paused = true)]
async fn a_restarted_master_does_not_confirm_a_lock_that_it_had_not_granted_before() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    fleet.masters[0].crash();
    let guard = take(&locks, "a").await;
    fleet.masters[0].start_again(false);
    let value = fleet.command(1, "GET lock:a");
    drop(fleet.masters[0].command(&["SET", "lock:a", value.text().unwrap()]));
    sleep(5 * SECOND).await;
    assert!(guard.is_valid());
    fleet.masters[1].crash();
    is_lost_in_time(guard).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_restarted_master_has_lost_is_put_back_while_its_vote_lasts() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.config(5 * TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let guard = take(&locks, "a").await;
    restart(&fleet, 0, false).await;
    // The next renewal puts it back, and the one after that is confirmed.
    sleep(4 * TTL).await;
    fleet.masters[1].crash();
    sleep(5 * TTL).await;
    assert!(guard.is_valid());
}

/// A server counts its uptime by its wall clock, which a machine may set after it has started.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_after_a_restart_does_not_end_the_quarantine() {
    let fleet = Fleet::new(5).await;
    let config = || fleet.config(LONGEST).longest_ttl(LONGEST);
    let (locks, other) = (config().connect().await.unwrap(), config().connect().await.unwrap());
    // The other client sends nothing for long.
    sleep(10 * 60 * SECOND).await;
    (3..5).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
    let guard = take(&locks, "a").await;
    sleep(SECOND / 10).await;
    (3..5).for_each(|master| drop(fleet.command(master, "DEL lock:a")));
    fleet.masters[0].restart(false);
    fleet.masters[0].step_clock(120_000);
    let second = other.mutex("a").try_acquire().await;
    assert!(!matches!(second, Ok(Some(_))) && guard.is_valid(), "two hold the lock");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_notices_a_restart_all_the_same() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    sleep(10 * SECOND).await;
    for master in 0..3 {
        restart(&fleet, master, true).await;
    }
    // Else the quarantine would begin with its next request.
    sleep(LONGEST + 2 * SECOND).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_some());
}
