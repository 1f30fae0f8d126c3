//! Fencing tokens: a quorum knows the last one, also a raised one.

use std::time::{Duration, UNIX_EPOCH};

use lock_core::{Clock, ErrorKind, GuardState, Token};
use lock_redlock::WallClock;
use lock_testkit::{cancel_after, give_back, take};
use tokio::time::{sleep, timeout};

use super::fleet::Fleet;
use super::restarts::{LONGEST, TTL, held};
use super::{MILLI, SECOND, TOKENS, away, cycle};

/// A day, in microseconds: so much later is a token that is larger by this.
const DAY: u64 = 86_400_000_000;

#[tokio::test(start_paused = true)]
async fn a_token_that_only_one_master_knows_is_written_to_a_quorum_first() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    cycle(&locks).await;
    let ahead = 4_000_000_000_000_000;
    fleet.command(0, &format!("ZADD {TOKENS} {ahead} last"));
    (3..5).for_each(|master| fleet.stall(master, 60 * SECOND));
    let token = cycle(&locks).await;
    assert!(token.get() > ahead, "one of the three that answer knows a larger one");
    (3..5).for_each(|master| fleet.resume(master));
    (0..2).for_each(|master| fleet.stall(master, 60 * SECOND));
    assert!(cycle(&locks).await > token, "one of the other three has the token");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_not_raised_without_a_quorum_or_without_the_lock() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    let floor = Token::new(guard.token().get() + DAY);
    (0..3).for_each(|master| fleet.stall(master, 20 * SECOND));
    let error = guard.raise_token(floor).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "no_quorum"), "{error}");
    sleep(25 * SECOND).await;
    guard.raise_token(floor).await.unwrap();
    // Lost on three, as far as two can tell nobody has it.
    (0..3).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
    let more = Token::new(floor.get() + DAY);
    let error = guard.raise_token(more).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!guard.is_valid());
    for master in 0..3 {
        let last = fleet.command(master, &format!("ZSCORE {TOKENS} last"));
        assert_eq!(last.text(), Some(&*floor.to_string()), "it is not the owner's");
    }
}

#[tokio::test(start_paused = true)]
async fn raising_a_token_may_be_given_up_at_any_point() {
    let (_fleet, locks) = Fleet::swift(5).await;
    let mut last = Token::new(0);
    for polls in 0..12 {
        let guard = take(&locks, "a").await;
        assert!(guard.token() > last);
        last = guard.token();
        let floor = Token::new(last.get() + DAY / 100);
        if let Some(raised) = cancel_after(polls, guard.raise_token(floor)).await {
            raised.unwrap();
            last = floor;
        }
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_the_masters_would_forget_is_refused() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    let floor = Token::new(guard.token().get() + 8 * DAY);
    let error = guard.raise_token(floor).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("days ahead"), "{error}");
    give_back(guard).await;
    assert!(cycle(&locks).await < floor);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_given_up_on_the_fast_path_runs_no_script() {
    for patience in [6, 60] {
        let fleet = Fleet::new(3).await;
        let mutex = fleet.connect(60 * SECOND).await.mutex("a");
        // The clock of the client is behind the last token: what claims a lock without a script does not suffice.
        let on_all = |line: String| [0, 1, 2].map(|master| format!("{:?}", fleet.command(master, &line)));
        on_all(format!("ZADD {TOKENS} 4503599627370496 last"));
        let last = || on_all(format!("ZSCORE {TOKENS} last"));
        let before = last();
        fleet.set_all(&away(4));
        // Within the shorter time the requests arrive, and their answers do not.
        let answer = timeout(patience * MILLI, mutex.try_acquire()).await;
        assert_eq!(answer.is_ok(), patience == 60);
        drop(answer);
        sleep(SECOND).await;
        assert!(fleet.is_free(), "it is taken back");
        assert_eq!(last() == before, patience == 6, "a script mints a token: {:?}", last());
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_raised_by_a_quorum_out_of_quarantine() {
    let (fleet, _locks, guard) = held(3).await;
    for master in 0..2 {
        fleet.masters[master].restart(true);
        sleep(SECOND).await;
    }
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    let floor = Token::new(guard.token().get() + DAY);
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
    take(&locks, "a").await.token()
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
        let guard = take(&locks, "a").await;
        let token = guard.token();
        if is_back_in_time {
            away.clone().for_each(|master| fleet.masters[master].start_again(true));
        }
        sleep(2 * TTL).await;
        give_back(guard).await;
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
    let floor = Token::new(guard.token().get() + DAY);
    guard.raise_token(floor).await.unwrap();
    (3..5).for_each(|master| fleet.masters[master].start_again(false));
    sleep(2 * TTL).await;
    give_back(guard).await;
    let next = token_of_the_others(&fleet).await;
    assert!(next > floor, "{next} came after {floor}");
}

#[tokio::test(start_paused = true)]
async fn masters_that_grant_a_smaller_token_after_the_quorum_get_the_larger_one() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.config(TTL).longest_ttl(LONGEST).connect().await.unwrap();
    let floor = Token::new(1_800_000_000_000_000);
    fleet.command(0, &format!("ZADD {TOKENS} {floor} last"));
    (3..5).for_each(|master| fleet.set_faults(master, &away(10)));
    let guard = take(&locks, "a").await;
    assert!(guard.token() > floor, "master 0 is of the quorum");
    sleep(SECOND / 10).await;
    give_back(guard).await;
    let next = token_of_the_others(&fleet).await;
    assert!(next > floor, "{next} came after {floor}");
}
