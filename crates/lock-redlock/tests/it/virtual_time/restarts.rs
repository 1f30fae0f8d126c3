//! Masters that restart while a lock is held.

use std::time::{Duration, UNIX_EPOCH};

use lock_core::{Clock, ErrorKind, Guard, GuardState, Locks, Token};
use lock_redlock::WallClock;
use lock_testkit::fake::Faults;
use tokio::time::{Instant, sleep, timeout};

use super::fleet::Fleet;
use super::{SECOND, TOKENS};

const TTL: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(30);

async fn held(masters: u64) -> (Fleet, Locks, Guard) {
    let fleet = Fleet::new(masters).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
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
    guard.release().await.unwrap();
    // What is free was not granted before a restart.
    for locks in [&locks, &other] {
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let next = timeout(LONGEST * 2, locks.mutex("a").acquire()).await.unwrap().unwrap();
    let waited = up_since[2].elapsed();
    assert!((LONGEST..LONGEST + 5 * SECOND).contains(&waited), "{waited:?}");
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_a_majority_has_lost_at_once_is_lost_in_time() {
    let (fleet, _locks, guard) = held(5).await;
    (0..3).for_each(|master| fleet.masters[master].restart(false));
    is_lost_in_time(guard).await;
}

/// Another holder may have had the master in between, whatever it has now.
#[tokio::test(start_paused = true)]
async fn a_restarted_master_does_not_confirm_a_lock_after_its_vote_has_expired() {
    let (fleet, _locks, guard) = held(3).await;
    let value = fleet.masters[1].command(&["GET", "lock:a"]);
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
    let guard = locks.mutex("a").acquire().await.unwrap();
    fleet.masters[0].start_again(false);
    let value = fleet.masters[1].command(&["GET", "lock:a"]);
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
    let guard = locks.mutex("a").acquire().await.unwrap();
    restart(&fleet, 0, false).await;
    // The next renewal puts it back, and the one after that is confirmed.
    sleep(4 * TTL).await;
    fleet.masters[1].crash();
    sleep(5 * TTL).await;
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_token_is_raised_by_a_quorum_out_of_quarantine() {
    let (fleet, _locks, guard) = held(3).await;
    for master in 0..2 {
        restart(&fleet, master, true).await;
        sleep(SECOND).await;
    }
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    let floor = Token::new(guard.token().get() + 86_400_000_000);
    let error = guard.raise_token(floor).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "no_quorum"), "{error}");
    sleep(LONGEST).await;
    guard.raise_token(floor).await.unwrap();
}

/// The token that a quorum of masters 0, 3 and 4 grants after all data of master 0 was lost.
async fn token_of_the_others(fleet: &Fleet) -> Token {
    fleet.masters[0].restart(false);
    sleep(2 * LONGEST).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    (1..3).for_each(|master| fleet.stall(master, 5 * SECOND));
    locks.mutex("a").acquire().await.unwrap().token()
}

/// A majority remembers a token. If one of just a majority forgets it, the clock has to be ahead of it.
#[tokio::test(start_paused = true)]
async fn tokens_fall_if_one_of_a_bare_majority_forgets_one_of_a_clock_that_was_ahead() {
    for (was_away, is_back_in_time, falls) in
        [(false, false, false), (true, true, false), (true, false, true)]
    {
        let (fleet, clock) = (Fleet::new(5).await, Clock::tokio());
        let ahead = Duration::from_secs(1_700_000_000 + 3600);
        let ahead = WallClock::new(move || UNIX_EPOCH + ahead + clock.now().since_boot());
        let locks = fleet.config(TTL).longest_ttl(LONGEST).wall_clock(ahead).connect().await.unwrap();
        let away = if was_away { 3..5 } else { 0..0 };
        away.clone().for_each(|master| fleet.masters[master].crash());
        let guard = locks.mutex("a").acquire().await.unwrap();
        let token = guard.token();
        if is_back_in_time {
            away.clone().for_each(|master| fleet.masters[master].start_again(true));
        }
        sleep(2 * TTL).await;
        guard.release().await.unwrap();
        if !is_back_in_time {
            away.for_each(|master| fleet.masters[master].start_again(true));
        }
        let next = token_of_the_others(&fleet).await;
        assert_eq!(next < token, falls, "{next} came after {token}");
    }
}

#[tokio::test(start_paused = true)]
async fn masters_that_come_back_while_a_lock_is_held_get_its_raised_token() {
    let (fleet, _locks, guard) = held(5).await;
    (3..5).for_each(|master| fleet.masters[master].crash());
    let floor = Token::new(guard.token().get() + 86_400_000_000);
    guard.raise_token(floor).await.unwrap();
    (3..5).for_each(|master| fleet.masters[master].start_again(false));
    sleep(2 * TTL).await;
    guard.release().await.unwrap();
    let next = token_of_the_others(&fleet).await;
    assert!(next > floor, "{next} came after {floor}");
}

#[tokio::test(start_paused = true)]
async fn masters_that_grant_a_smaller_token_after_the_quorum_get_the_larger_one() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let floor = Token::new(1_800_000_000_000_000);
    drop(fleet.masters[0].command(&["ZADD", TOKENS, &floor.get().to_string(), "last"]));
    let late = Faults { delay_ms: 10..=10, ..Faults::default() };
    (3..5).for_each(|master| fleet.set_faults(master, &late));
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(guard.token() > floor, "master 0 is of the quorum");
    sleep(SECOND / 10).await;
    guard.release().await.unwrap();
    let next = token_of_the_others(&fleet).await;
    assert!(next > floor, "{next} came after {floor}");
}
