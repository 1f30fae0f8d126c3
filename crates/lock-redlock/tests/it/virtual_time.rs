//! The real backend on masters in memory, in virtual time: what takes long, and how long it takes.

mod extensions;
mod fleet;
mod masks;
mod restarts;

use std::collections::HashSet;
use std::time::Duration;

use lock_core::{ErrorKind, Guard, LockOptions, Outcome, Released, ServerLockState};
use lock_testkit::LogCapture;
use lock_testkit::fake::{Faults, Trace};
use tokio::time::{Instant, sleep, timeout};

use self::fleet::{Fleet, TIMEOUT};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TOKENS: &str = "polylock:tokens:{lock:a}";

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
async fn closing_waits_for_a_majority_that_is_late() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(60 * SECOND).await;
    (0..2).for_each(|master| fleet.stall(master, TIMEOUT / 2));
    assert!(timeout(TIMEOUT / 10, locks.mutex("a").acquire()).await.is_err());
    locks.close().await.unwrap();
    sleep(SECOND).await;
    assert!((0..3).all(|master| !fleet.has_key(master)), "the lock is left");
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

#[tokio::test(start_paused = true)]
async fn a_lock_of_which_less_than_a_tenth_is_left_is_none() {
    let fleet = Fleet::new(3).await;
    let locks = fleet.connect(SECOND).await;
    let slow = Faults { delay_ms: 460..=460, ..Faults::default() };
    (0..3).for_each(|master| fleet.set_faults(master, &slow));
    let started = Instant::now();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied), "{error}");
    assert!(error.to_string().contains("less than a tenth of the ttl of 1s was left"), "{error}");
    assert!((0..3).all(|master| fleet.has_key(master)), "it was granted");

    (0..3).for_each(|master| fleet.set_faults(master, &Faults::default()));
    sleep(100 * MILLI).await;
    // They were granted no earlier than after half of the round trip.
    assert!(started.elapsed() < SECOND + 460 * MILLI, "{:?}", started.elapsed());
    assert!((0..3).all(|master| !fleet.has_key(master)), "it is released at once");
}

#[tokio::test(start_paused = true)]
async fn clocks_that_differ_are_warned_of_with_the_figures() {
    let (fleet, (log, _guard)) = (Fleet::new(3).await, LogCapture::begin());
    let locks = fleet.connect(10 * SECOND).await;
    assert_eq!(log.warnings("the clock of"), [""; 0]);
    let report = locks.doctor().await.unwrap();
    assert!(!report.to_string().contains("the clock of"), "{report}");

    fleet.masters[1].step_clock(500);
    let report = locks.doctor().await.unwrap();
    let _locks = fleet.connect(10 * SECOND).await;
    for said in [report.to_string(), log.warnings("the clock of").concat()] {
        for figure in ["the clock of master-1:6379 is at least 500ms ahead", "the drift margin is 102ms"] {
            assert!(said.contains(figure), "{said}");
        }
        assert!(
            ["master-0:6379", "master-2:6379"].iter().any(|other| said.contains(&format!("that of {other}"))),
            "{said}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_has_an_identity_of_its_own() {
    let (fleet, trace) = (Fleet::new(3).await, Trace::new());
    fleet.masters[0].keep(&trace, "");
    let locks = fleet.connect(10 * SECOND).await;
    for master in &fleet.masters[..2] {
        drop(master.command(&["SET", "lock:a", "theirs"]));
    }
    assert!(locks.mutex("a").try_acquire_for(10 * SECOND).await.unwrap().is_none());
    let lines = trace.lines();
    // Only a claim and its removal name all keys, and after them the owner; only a claim has a ttl.
    let claims = lines.iter().filter(|line| line.contains("EVALSHA") && line.contains(" 10000 "));
    let owners: Vec<_> = claims
        .filter_map(|line| line.split_once("polylock:line:{lock:a} ")?.1.split_whitespace().next())
        .collect();
    assert!(owners.len() >= 5, "{lines:#?}");
    let different: HashSet<_> = owners.iter().collect();
    assert_eq!(different.len(), owners.len(), "{owners:?}");
}

#[tokio::test(start_paused = true)]
async fn a_split_vote_is_rolled_back_before_the_pause() {
    let fleet = Fleet::new(3).await;
    let near = Faults { delay_ms: 1..=1, ..Faults::default() };
    (0..3).for_each(|master| fleet.set_faults(master, &near));
    let locks = fleet.connect(10 * SECOND).await;
    fleet.masters[2].crash();
    drop(fleet.masters[1].command(&["SET", "lock:a", "theirs"]));
    // One is for us and one against, each time.
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.try_acquire_for(5 * SECOND).await });
    let (mut held, mut free, mut attempts) = (0, 0, 0);
    let mut had_key = false;
    while !waiting.is_finished() {
        let has_key = fleet.has_key(0);
        attempts += usize::from(has_key && !had_key);
        *(if has_key { &mut held } else { &mut free }) += 1;
        had_key = has_key;
        sleep(MILLI).await;
    }
    assert!(waiting.await.unwrap().unwrap().is_none());
    assert!((5..200).contains(&attempts), "{attempts} attempts");
    assert!(held * 10 < free, "the vote of the first master is kept for {held} ms and not for {free} ms");
}

/// What a holder does before it asks again.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Releases,
    Drops,
    TakesAnother,
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_again_at_once_lets_waiters_go_first() {
    for meanwhile in [Meanwhile::Releases, Meanwhile::Drops, Meanwhile::TakesAnother] {
        let fleet = Fleet::new(5).await;
        let locks = fleet.connect(60 * SECOND).await;
        let waiting = fleet.connect(60 * SECOND).await.mutex("a");
        // Waiters are notified late.
        fleet.links.iter().for_each(|[_, hears]| hears.set_faults(away(8)));
        let mut guard = locks.mutex("a").acquire().await.unwrap();
        let waiting = tokio::spawn(async move { hold(waiting.acquire().await.unwrap()).await });
        sleep(100 * MILLI).await;
        fleet.links.iter().for_each(|[asks, _]| asks.set_faults(away(1)));
        let (started, mut rounds) = (Instant::now(), 0);
        while !waiting.is_finished() {
            rounds += 1;
            assert!(rounds <= 3, "{meanwhile:?}: it is overtaken again and again");
            match meanwhile {
                Meanwhile::Drops => {
                    drop(guard);
                    // It leaves in the background, and is not answered before the next request leaves.
                    sleep(MILLI).await;
                }
                _ => assert_eq!(guard.release().await.unwrap(), Released::Released),
            }
            if let Meanwhile::TakesAnother = meanwhile {
                hold(locks.mutex("b").acquire().await.unwrap()).await;
            }
            guard = locks.mutex("a").acquire().await.unwrap();
            sleep(10 * MILLI).await;
        }
        assert!(started.elapsed() < 300 * MILLI, "the lock was free meanwhile: {:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_a_waiter_that_the_lock_is_handed_over_to() {
    for gives_up in [false, true] {
        let fleet = Fleet::new(5).await;
        let near = fleet.connect(60 * SECOND).await.mutex("a");
        let [waiting, newcomer] = [fleet.connect(60 * SECOND).await, fleet.connect(60 * SECOND).await];
        let guard = near.acquire().await.unwrap();
        let waiting = tokio::spawn(async move { hold(waiting.mutex("a").acquire().await.unwrap()).await });
        sleep(100 * MILLI).await;
        // A notification takes a little longer than a request.
        fleet.links.iter().for_each(|[asks, hears]| {
            asks.set_faults(away(2));
            hears.set_faults(away(3));
        });
        assert_eq!(guard.release().await.unwrap(), Released::Released);
        let (started, newcomer) = (Instant::now(), newcomer.mutex("a"));
        if gives_up {
            // Its requests have arrived, their answers have not.
            let answer = timeout(3 * MILLI, newcomer.try_acquire()).await;
            assert!(answer.is_err(), "{answer:?}");
        } else {
            assert!(newcomer.try_acquire().await.unwrap().is_none());
        }
        waiting.await.unwrap();
        assert!(started.elapsed() < 20 * MILLI, "the lock was free meanwhile: {:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn once_a_quorum_is_busy_no_other_master_is_waited_for() {
    let fleet = Fleet::new(5).await;
    let near = Faults { delay_ms: 2..=2, ..Faults::default() };
    (0..5).for_each(|master| fleet.set_faults(master, &near));
    let locks = fleet.connect(60 * SECOND).await;
    for master in &fleet.masters[..3] {
        drop(master.command(&["SET", "lock:a", "theirs"]));
    }
    (3..5).for_each(|master| fleet.stall(master, 60 * SECOND));
    let started = Instant::now();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(started.elapsed() < 10 * MILLI, "a deadline is 20 ms at least: {:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_attempt_given_up_on_the_fast_path_runs_no_script() {
    for patience in [6, 60] {
        let fleet = Fleet::new(3).await;
        let mutex = fleet.connect(60 * SECOND).await.mutex("a");
        // The clock of the client is behind the last token: what claims a lock without a script does not suffice.
        let on_all = |words: &[&str]| -> Vec<String> {
            fleet.masters.iter().map(|master| format!("{:?}", master.command(words))).collect()
        };
        on_all(&["ZADD", TOKENS, "4503599627370496", "last"]);
        let last = || on_all(&["ZSCORE", TOKENS, "last"]);
        let before = last();
        (0..3).for_each(|master| fleet.set_faults(master, &away(4)));
        // Within the shorter time the requests arrive, and their answers do not.
        let answer = timeout(patience * MILLI, mutex.try_acquire()).await;
        assert_eq!(answer.is_ok(), patience == 60);
        drop(answer);
        sleep(SECOND).await;
        assert!((0..3).all(|master| !fleet.has_key(master)), "it is taken back");
        assert_eq!(last() == before, patience == 6, "a script mints a token: {:?}", last());
    }
}

/// One master has no push connection, and another, which has one, does not vote.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_cannot_enter_the_queues_of_a_quorum_asks_seldom() {
    let (fleet, trace) = (Fleet::new(3).await, Trace::new());
    fleet.masters[1].keep(&trace, "");
    (0..3).for_each(|master| fleet.set_faults(master, &away(1)));
    let locks = fleet.connect(60 * SECOND).await;
    for master in &fleet.masters {
        drop(master.command(&["SET", "lock:a", "theirs"]));
    }
    fleet.links[0][1].set_faults(Faults { refuse: 1.0, ..away(1) });
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.try_acquire_for(20 * SECOND).await });
    sleep(SECOND).await;
    fleet.masters[2].restart(false);
    // Until it has noticed.
    sleep(3 * SECOND).await;
    let scripts = || trace.lines().iter().filter(|line| line.contains("EVALSHA")).count();
    let before = scripts();
    sleep(2 * SECOND).await;
    let asked = scripts() - before;
    assert!((10..=150).contains(&asked), "{asked} scripts in two seconds");
    assert!(waiting.await.unwrap().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn inspect_ignores_masters_that_may_have_lost_the_lock() {
    let fleet = Fleet::new(5).await;
    let locks = fleet.connect(60 * SECOND).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
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

/// A master to which, and from which, the way takes so many milliseconds.
fn away(millis: u64) -> Faults {
    Faults { delay_ms: millis..=millis, ..Faults::default() }
}

/// Keeps a lock for a moment.
async fn hold(guard: Guard) {
    sleep(5 * MILLI).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}
