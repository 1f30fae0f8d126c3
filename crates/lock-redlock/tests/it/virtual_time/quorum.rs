//! A quorum decides: masters that are dead, hang, disagree or have forgotten something.

use lock_core::{ErrorKind, GuardState, ServerLockState, Token};
use lock_testkit::fake::Link;
use lock_testkit::{give_back, take, until};
use tokio::time::{Instant, sleep, timeout};

use super::fleet::{Fleet, TIMEOUT};
use super::{MILLI, SECOND, TOKENS, away, cycle};

#[tokio::test(start_paused = true)]
async fn as_many_masters_may_be_dead_as_leave_a_quorum() {
    for masters in [3, 5, 7] {
        let (fleet, quorum) = (Fleet::new(masters as u64).await, masters / 2 + 1);
        let locks = fleet.connect(60 * SECOND).await;
        let guard = take(&locks, "held").await;
        for dead in quorum..masters {
            sleep(SECOND).await;
            fleet.masters[dead].crash();
            cycle(&locks).await;
        }
        sleep(120 * SECOND).await;
        assert!(guard.is_valid(), "it is renewed by the others");
        fleet.masters[0].crash();
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let said = format!("of {masters} masters agreed, {quorum} are needed");
        assert!(error.to_string().contains(&said), "{error}");
        timeout(60 * SECOND, guard.lost()).await.unwrap();
        assert!(fleet.is_free());
    }
}

#[tokio::test(start_paused = true)]
async fn a_minority_may_be_dead_from_the_start() {
    let fleet = Fleet::new(5).await;
    fleet.masters[0].crash();
    fleet.masters[4].crash();
    let locks = fleet.connect(60 * SECOND).await;
    let first = cycle(&locks).await;
    fleet.masters[0].start_again(false);
    assert!(cycle(&locks).await > first);
}

/// As after a long idle time: the first requests get no answer, and new connections work.
#[tokio::test(start_paused = true)]
async fn connections_that_a_router_has_forgotten_cost_one_timeout_and_no_error() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    cycle(&locks).await;
    fleet.links.iter().for_each(|[first, _]| first.stall(3600 * SECOND));
    let started = Instant::now();
    cycle(&locks).await;
    assert!(started.elapsed() < 2 * TIMEOUT, "{:?}", started.elapsed());
    sleep(SECOND).await;
    assert!(fleet.is_free());
}

#[tokio::test(start_paused = true)]
async fn b09_one_vote_for_and_one_against_is_an_end() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    fleet.command(1, "SET lock:a theirs");
    fleet.masters[2].crash();
    let started = Instant::now();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(started.elapsed() < 2 * TIMEOUT, "{:?}", started.elapsed());
    sleep(SECOND).await;
    assert!(!fleet.has_key(0));
}

#[tokio::test(start_paused = true)]
async fn b10_an_error_of_a_minority_is_no_error_of_the_quorum() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    let refuses = fleet.command(0, &format!("LPUSH {TOKENS} something"));
    assert!(!refuses.is_error(), "{refuses:?}");
    cycle(&locks).await;
    fleet.masters[0].crash();
    cycle(&locks).await;
    sleep(SECOND).await;
    assert!(!fleet.has_key(1) && !fleet.has_key(2));
}

#[tokio::test(start_paused = true)]
async fn a_hung_master_is_not_waited_for_until_it_is_back() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    cycle(&locks).await;
    fleet.stall(2, 60 * SECOND);
    cycle(&locks).await;
    sleep(2 * TIMEOUT).await;
    // One votes for and one against: a request to the third would have to wait for it.
    fleet.command(0, "SET lock:a theirs");
    let started = Instant::now();
    for _ in 0..100 {
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    }
    assert!(started.elapsed() < 10 * TIMEOUT, "{:?}", started.elapsed());
    fleet.command(0, "DEL lock:a");
    sleep(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    assert!(fleet.has_key(2), "it is never asked again");
    give_back(guard).await;
}

/// The lock is on three of five, and one of those hangs: nothing tells whether it is ours on a quorum, and a quorum has
/// nothing of ours all the same.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_a_hung_minority() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    cycle(&locks).await;
    (3..5).for_each(|master| fleet.stall(master, 60 * SECOND));
    cycle(&locks).await;
    // Their requests fail, and these two are no longer asked.
    sleep(4 * TIMEOUT).await;
    let guard = take(&locks, "a").await;
    fleet.stall(2, 60 * SECOND);
    let started = Instant::now();
    give_back(guard).await;
    assert!(started.elapsed() <= TIMEOUT, "{:?}", started.elapsed());
    sleep(120 * SECOND).await;
    assert!(fleet.is_free());
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_a_slow_master_and_not_for_one_that_hangs() {
    let (fleet, locks) = Fleet::swift(3).await;
    fleet.set_faults(2, &away(100));
    drop(take(&locks, "a").await);
    locks.close().await.unwrap();
    assert!(fleet.is_free());

    let (fleet, locks) = Fleet::swift(3).await;
    fleet.stall(2, 60 * SECOND);
    drop(take(&locks, "a").await);
    let started = Instant::now();
    locks.close().await.unwrap();
    assert!(started.elapsed() < 3 * TIMEOUT, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn masters_that_have_become_slow_are_waited_for() {
    for looks in [false, true] {
        let (fleet, locks) = Fleet::swift(3).await;
        fleet.set_all(&away(200));
        assert!(timeout(100 * MILLI, locks.mutex("missed").acquire()).await.is_err());
        match looks {
            true => assert_eq!(locks.inspect("a").await.unwrap().holder(), None),
            false => drop(cycle(&locks).await),
        }
    }
    let (fleet, locks) = Fleet::swift(3).await;
    // Of no two masters do both know the same: a token has to be raised.
    let ahead = 4_000_000_000_000_000;
    fleet.command(0, &format!("ZADD {TOKENS} {ahead} last"));
    fleet.command(1, &format!("ZADD {TOKENS} {} last", ahead + 10));
    fleet.set_all(&away(200));
    let guard = take(&locks, "a").await;
    assert!(guard.token().get() > ahead);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
}

#[tokio::test(start_paused = true)]
async fn a_master_that_refuses_after_the_quorum_is_asked_again() {
    let fleet = Fleet::new(3).await;
    // The first renewal is far away.
    let locks = fleet.connect(200 * SECOND).await;
    fleet.command(2, "SET lock:a theirs");
    fleet.set_faults(2, &away(50));
    let guard = take(&locks, "a").await;
    // It has refused by now, and its answer is on its way.
    sleep(75 * MILLI).await;
    fleet.command(2, "DEL lock:a");
    sleep(SECOND).await;
    assert!(fleet.has_key(2), "it is not asked again");
    give_back(guard).await;
    sleep(SECOND).await;
    assert!(fleet.is_free());
}

#[tokio::test(start_paused = true)]
async fn a_minority_that_lost_the_key_gets_it_again_with_the_next_renewal() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(3 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND / 10).await;
    fleet.command(0, "DEL lock:a");
    sleep(2 * SECOND).await;
    assert!(fleet.has_key(0));
    // The lock of another client there is not touched.
    fleet.command(0, "SET lock:a theirs");
    sleep(10 * SECOND).await;
    assert_eq!(fleet.command(0, "GET lock:a").text(), Some("theirs"));
    guard.extend(3 * SECOND).await.unwrap();
    fleet.command(0, "DEL lock:a");
    sleep(2 * SECOND).await;
    assert!(fleet.has_key(0));
    give_back(guard).await;
    sleep(SECOND).await;
    assert!(fleet.is_free());
}

#[tokio::test(start_paused = true)]
async fn votes_that_a_rival_gives_back_are_asked_for_long_before_the_next_renewal() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    (3..5).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
    let guard = take(&locks, "a").await;
    sleep(5 * MILLI).await;
    (3..5).for_each(|master| drop(fleet.command(master, "DEL lock:a")));
    sleep(SECOND / 5).await;
    assert!((0..5).all(|master| fleet.has_key(master)));
    give_back(guard).await;
    sleep(SECOND).await;
    assert!(fleet.is_free());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_confirmed_too_late_heals_nothing() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.config(2 * SECOND).master_timeout(20 * SECOND).connect().await.unwrap();
    let guard = take(&locks, "a").await;
    sleep(SECOND / 10).await;
    fleet.command(0, "DEL lock:a");
    fleet.set_all(&away(1_000));
    guard.lost().await;
    assert!(
        fleet.has_key(1) && fleet.has_key(2),
        "the renewal has arrived, and its answers are on their way"
    );
    for _ in 0..5_000 {
        assert!(!fleet.has_key(0), "claimed for a lease that has ended");
        sleep(MILLI).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_split_lease_does_not_wait_for_a_hung_master() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.config(60 * SECOND).master_timeout(20 * SECOND).connect().await.unwrap();
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    (0..2).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
    fleet.stall(4, 60 * SECOND);
    // Two are ours, two are not: only the one that hangs could say.
    let started = Instant::now();
    let held = guard.verify().await;
    assert!(held.is_err(), "{held:?}");
    assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    fleet.resume(4);
    until("it says so", async || guard.extend(60 * SECOND).await.is_ok()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_masters_may_have_that_are_not_seen_is_not_free() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    fleet.command(0, "DEL lock:a");
    (3..5).for_each(|master| fleet.stall(master, 60 * SECOND));
    let state = locks.inspect("a").await.unwrap();
    assert!(guard.is_valid() && state.is_held(), "{state:?}");
    assert!(locks.break_lock("a").await.unwrap());
    assert_eq!(locks.inspect("a").await.unwrap().holder(), None, "two are no quorum");
    assert!(!locks.break_lock("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_holder_that_was_seen_is_broken_on_a_quorum_or_not_at_all() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    (3..5).for_each(|master| fleet.stall(master, 600 * SECOND));
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!(seen.holders[0].token, Some(guard.token()));
    assert!(seen.holders[0].remaining.is_some_and(|left| left <= 60 * SECOND), "{seen:?}");
    assert!(!locks.break_lock_if("a", Token::new(guard.token().get() - 1)).await.unwrap());
    // Somebody proposes a larger token meanwhile, and does not get the lock.
    let larger = Token::new(guard.token().get() + 1_000_000);
    fleet.command(1, &format!("ZADD {TOKENS} GT {larger} last"));
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!((seen.holders[0].token, seen.token), (Some(guard.token()), Some(larger)), "{seen}");
    fleet.stall(2, 600 * SECOND);
    let error = locks.break_lock_if("a", guard.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    fleet.resume(2);
    // It may still be left alone for a moment.
    until("the holder is broken", async || match locks.break_lock_if("a", guard.token()).await {
        Ok(broken) => broken,
        Err(error) if error.kind() == ErrorKind::Unavailable => false,
        Err(error) => panic!("{error}"),
    })
    .await;
    assert!(!fleet.has_key(0));
    assert!(matches!(guard.verify().await.unwrap(), GuardState::Lost(_)));
    fleet.links.iter().flatten().for_each(Link::resume);
    let next = take(&locks, "a").await;
    assert!(next.token() > larger);
    for before in [guard.token(), larger] {
        assert!(!locks.break_lock_if("a", before).await.unwrap(), "another client holds it");
    }
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    // Tokens that are far ahead of the clocks were not proposed by somebody who asked for the lock.
    let ahead = Token::new(1 << 52);
    (0..5).for_each(|master| drop(fleet.command(master, &format!("ZADD {TOKENS} GT {ahead} last"))));
    assert_eq!(locks.inspect("a").await.unwrap().holders[0].token, Some(ahead));
    assert!(locks.break_lock_if("a", ahead).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn inspect_ignores_masters_that_may_have_lost_the_lock() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = take(&locks, "a").await;
    sleep(SECOND).await;
    fleet.masters[0].restart(false);
    let state = locks.inspect("a").await.unwrap();
    assert!(state.is_held(), "{state:?}");
    let restarted = |view: &ServerLockState| matches!(view, ServerLockState::Unknown(why) if why.contains("has restarted"));
    let restarted: Vec<_> = state.servers.iter().map(|seen| restarted(&seen.view)).collect();
    assert_eq!(restarted, [true, false, false, false, false], "{state:?}");

    (1..3).for_each(|master| fleet.masters[master].restart(false));
    let error = locks.inspect("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(guard.is_valid() && error.to_string().contains("has restarted"), "{error}");
}
