//! Several clients on one lock: who is next, and how many requests that takes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::join_all;
use lock_core::{Clock, Guard, Token};
use lock_redlock::{Votes, WallClock};
use lock_testkit::fake::{Faults, Trace};
use lock_testkit::{give_back, take};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::fleet::Fleet;
use super::{MILLI, SECOND, away};

#[tokio::test(start_paused = true)]
async fn every_attempt_has_an_identity_of_its_own() {
    let (fleet, trace) = (Fleet::new(3).await, Trace::new());
    fleet.masters[0].keep(&trace, "");
    let locks = fleet.connect(10 * SECOND).await;
    (0..2).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
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
    let near = away(1);
    fleet.set_all(&near);
    let locks = fleet.connect(10 * SECOND).await;
    fleet.masters[2].crash();
    fleet.command(1, "SET lock:a theirs");
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
        let mut guard = take(&locks, "a").await;
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
                _ => give_back(guard).await,
            }
            if let Meanwhile::TakesAnother = meanwhile {
                hold(take(&locks, "b").await).await;
            }
            guard = take(&locks, "a").await;
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
        let waiting = tokio::spawn(async move { hold(take(&waiting, "a").await).await });
        sleep(100 * MILLI).await;
        // A notification takes a little longer than a request.
        fleet.links.iter().for_each(|[asks, hears]| {
            asks.set_faults(away(2));
            hears.set_faults(away(3));
        });
        give_back(guard).await;
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
    let near = away(2);
    fleet.set_all(&near);
    let locks = fleet.connect(60 * SECOND).await;
    (0..3).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
    (3..5).for_each(|master| fleet.stall(master, 60 * SECOND));
    let started = Instant::now();
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(started.elapsed() < 10 * MILLI, "a deadline is 20 ms at least: {:?}", started.elapsed());
}

/// One master has no push connection, and another, which has one, does not vote.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_cannot_enter_the_queues_of_a_quorum_asks_seldom() {
    let (fleet, trace) = (Fleet::new(3).await, Trace::new());
    fleet.masters[1].keep(&trace, "");
    fleet.set_all(&away(1));
    let locks = fleet.connect(60 * SECOND).await;
    (0..3).for_each(|master| drop(fleet.command(master, "SET lock:a theirs")));
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

/// Keeps a lock for a moment.
async fn hold(guard: Guard) {
    sleep(5 * MILLI).await;
    give_back(guard).await;
}

/// What came of clients that took a lock in turns.
#[derive(Default)]
struct Contest {
    /// How long each holder took to get the lock after the one before.
    gaps: Vec<Duration>,
    holders: Vec<usize>,
    last: Option<(Instant, Token)>,
    votes: Votes,
    /// How many scripts a master ran for each lock.
    scripts: f64,
}

/// So many clients take the lock so often each.
async fn contend(clients: usize, rounds: usize) -> Contest {
    let (fleet, trace) = (Fleet::new(5).await, Trace::new());
    fleet.set_all(&away(1));
    let mut backends = Vec::new();
    for _ in 0..clients {
        backends.push(fleet.backend(10 * SECOND).await);
    }
    fleet.masters[0].keep(&trace, "");
    let contest = Arc::new(Mutex::new(Contest::default()));
    let tasks = backends.iter().enumerate().map(|(number, (_, locks))| {
        let (locks, contest) = (locks.clone(), Arc::clone(&contest));
        tokio::spawn(async move {
            for _ in 0..rounds {
                let guard = take(&locks, "a").await;
                {
                    let mut seen = contest.lock().unwrap();
                    let last = seen.last.take();
                    assert!(last.is_none_or(|(_, last)| guard.token() > last), "a token that is not larger");
                    seen.gaps.extend(last.map(|(at, _)| at.elapsed()));
                    seen.holders.push(number);
                }
                sleep(2 * MILLI).await;
                contest.lock().unwrap().last = Some((Instant::now(), guard.token()));
                give_back(guard).await;
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
    let mut contest = std::mem::take(&mut *contest.lock().unwrap());
    for votes in backends.iter().map(|(backend, _)| backend.votes()) {
        contest.votes.won += votes.won;
        contest.votes.won_at_once += votes.won_at_once;
        contest.votes.handed_over += votes.handed_over;
        contest.votes.split += votes.split;
    }
    contest.gaps.sort_unstable();
    let scripts = trace.lines().iter().filter(|line| line.contains("EVALSHA")).count();
    contest.scripts = scripts as f64 / contest.votes.won as f64;
    contest
}

#[tokio::test(start_paused = true)]
async fn twenty_clients_seldom_split_the_vote() {
    let Contest { holders, votes, .. } = contend(20, 10).await;
    assert_eq!(holders.len(), 200);
    assert!(votes.at_once() >= 0.95 && votes.split <= votes.won, "{votes}");
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_has_it_at_once_and_is_not_overtaken() {
    let Contest { gaps, holders, votes, scripts, .. } = contend(8, 20).await;
    assert!(gaps[gaps.len() / 2] < 20 * MILLI, "{gaps:?}");
    assert!(votes.handed_over * 10 >= votes.won * 9, "{votes}");
    // A claim that joins the queue, the confirmation and the release.
    assert!(scripts < 4.0, "{scripts} scripts per lock");
    // A client that releases the lock and asks again at once comes after the waiters.
    let again = holders.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!(again <= holders.len() / 10, "{again} times in a row: {holders:?}");
}

/// Else it would be behind all who come within a day.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_clock_is_ahead_gets_its_turn() {
    let fleet = Fleet::new(3).await;
    let time = fleet.command(0, "TIME").array().and_then(|time| time[0].text()?.parse().ok()).unwrap();
    let connect = async |ahead: Duration| {
        let (clock, now) = (Clock::tokio(), UNIX_EPOCH + Duration::from_secs(time) + ahead);
        let clock = WallClock::new(move || now + clock.now().since_boot());
        fleet.config(60 * SECOND).wall_clock(clock).connect().await.unwrap()
    };
    let waits = connect(86_400 * SECOND).await;
    let mut others = JoinSet::new();
    for _ in 0..4 {
        let locks = connect(Duration::ZERO).await;
        others.spawn(async move {
            loop {
                let guard = take(&locks, "a").await;
                sleep(50 * MILLI).await;
                give_back(guard).await;
            }
        });
    }
    sleep(5 * SECOND).await;
    let guard = timeout(5 * SECOND, waits.mutex("a").acquire()).await.expect("its turn").unwrap();
    give_back(guard).await;
}
