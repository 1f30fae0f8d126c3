//! A release hands the lock over to the first waiter: what that takes, and what becomes of it where masters or waiters fail.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use lock_core::{Guard, OwnerId};
use lock_redlock::Redlock;
use lock_testkit::{acquiring, cancel_after, come, for_each_poll_count, give_back, hand_over, soon, take};
use redis_link::proof::Secret;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::fleet::Fleet;
use super::{LINE, MILLI, SECOND, away};

/// How long a master keeps a lock for a waiter that does not confirm.
const GRACE: Duration = SECOND;

/// A lock that is held, and a waiter of another client in the queue of each master.
struct Scene {
    fleet: Fleet,
    guard: Guard,
    waiting: Arc<Redlock>,
    waiter: JoinHandle<Guard>,
}

impl Scene {
    async fn new(masters: u64) -> Self {
        let fleet = Fleet::new(masters).await;
        let guard = take(&fleet.connect(60 * SECOND).await, "a").await;
        let (waiting, locks) = fleet.backend(60 * SECOND).await;
        let waiter = acquiring(locks.mutex("a"));
        sleep(100 * MILLI).await;
        Self { fleet, guard, waiting, waiter }
    }

    /// These masters no longer know of the waiter.
    fn forget(&self, masters: Range<usize>) {
        masters
            .for_each(|master| assert_eq!(self.fleet.command(master, &format!("DEL {LINE}")).int(), Some(1)));
    }

    /// The only entry in the queue of a master.
    fn entry(&self, master: usize) -> Option<String> {
        let queue = self.fleet.command(master, &format!("ZRANGE {LINE} 0 -1"));
        let [entry] = queue.array()? else { return None };
        entry.text().map(str::to_owned)
    }

    /// Says to the waiter, as a master does, that it was handed the lock.
    fn pretend(&self, master: usize) {
        let entry = self.entry(master).unwrap();
        let words: Vec<_> = entry.split(' ').collect();
        let (owner, secret) = words[0].split_once(':').unwrap();
        let proof = Secret::new(OwnerId::decode(secret).unwrap()).proof("9000000000000", "lock:a");
        let text = format!("passed {owner} 9000000000000 {proof} lock:a");
        let heard = self.fleet.masters[master].command(&["PUBLISH", words[4], &text]);
        assert_eq!(heard.int(), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_over_is_confirmed_for_the_ttl_on_all_masters() {
    let scene = Scene::new(5).await;
    scene.forget(0..2);
    let guard = hand_over(scene.guard, scene.waiter).await;
    assert_eq!(scene.waiting.votes().handed_over, 1, "{}", scene.waiting.votes());
    sleep(2 * GRACE).await;
    for master in 0..5 {
        let left = scene.fleet.command(master, "PTTL lock:a").int();
        assert!(left > Some(50_000), "{left:?} on {master}");
    }
    assert!(guard.is_valid());
}

/// A waiter that some masters hand the lock over to, and others do not, asks them.
#[tokio::test(start_paused = true)]
async fn a_split_hand_over_is_decided_by_a_vote() {
    let scene = Scene::new(5).await;
    scene.forget(0..3);
    let released = Instant::now();
    drop(hand_over(scene.guard, scene.waiter).await);
    assert!(released.elapsed() < GRACE, "{:?}", released.elapsed());
    assert_eq!(scene.waiting.votes().handed_over, 0);
}

/// What may have been handed over a grace period ago may be another's by now.
#[tokio::test(start_paused = true)]
async fn a_late_notification_is_not_believed() {
    let scene = Scene::new(5).await;
    sleep(GRACE).await;
    (0..5).for_each(|master| scene.pretend(master));
    sleep(300 * MILLI).await;
    assert!(!scene.waiter.is_finished());
    give_back(hand_over(scene.guard, scene.waiter).await).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_when_it_is_handed_the_lock_does_not_believe_it_later() {
    let fleet = Fleet::new(5).await;
    let [holder, pausing, other] = [
        fleet.connect(60 * SECOND).await,
        fleet.connect(60 * SECOND).await,
        fleet.connect(60 * SECOND).await,
    ];
    let (guard, mutex) = (take(&holder, "a").await, pausing.mutex("a"));
    let mut paused = pin!(mutex.acquire());
    assert!(timeout(100 * MILLI, &mut paused).await.is_err());
    let waiter = acquiring(other.mutex("a"));
    sleep(100 * MILLI).await;
    let released = Instant::now();
    let guard = hand_over(guard, waiter).await;
    // A waiter sleeps for two seconds between two requests, at most.
    assert!((GRACE / 2..GRACE + 3 * SECOND).contains(&released.elapsed()), "{:?}", released.elapsed());
    assert!(timeout(500 * MILLI, &mut paused).await.is_err(), "another has the lock");
    give_back(guard).await;
    give_back(soon(paused).await.unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_once_it_is_handed_the_lock_blocks_others_for_a_ttl_at_most() {
    let (fleet, ttl) = (Fleet::new(5).await, 10 * SECOND);
    let [holder, pausing, other] =
        [fleet.connect(ttl).await, fleet.connect(ttl).await, fleet.connect(ttl).await];
    let (guard, mutex) = (take(&holder, "a").await, pausing.mutex("a"));
    let mut paused = pin!(mutex.acquire());
    assert!(timeout(100 * MILLI, &mut paused).await.is_err());
    give_back(guard).await;
    sleep(20 * MILLI).await;
    // All masters have handed it over by now.
    assert!(poll!(&mut paused).is_pending());
    sleep(100 * MILLI).await;
    let confirmed = (0..5).filter(|master| fleet.command(*master, "PTTL lock:a").int() > Some(8_000)).count();
    assert_eq!(confirmed, 5, "it is confirmed");
    let released = Instant::now();
    let guard = soon(other.mutex("a").acquire()).await.unwrap();
    assert!(released.elapsed() < ttl + 3 * SECOND, "{:?}", released.elapsed());
    // Its lease is over. So it asks again.
    assert!(timeout(500 * MILLI, &mut paused).await.is_err(), "another has the lock");
    give_back(guard).await;
    let guard = soon(paused).await.unwrap();
    assert!(guard.is_valid());
    sleep(2 * ttl).await;
    assert!(guard.is_valid(), "it is renewed");
}

/// Whenever a waiter is dropped, before and after it was handed the lock: the next one gets it, and nothing is left.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_at_any_point_hands_the_lock_on() {
    let fleet = Fleet::new(3).await;
    fleet.set_all(&away(1));
    let [holder, dropping, next] = [
        fleet.connect(60 * SECOND).await,
        fleet.connect(60 * SECOND).await,
        fleet.connect(60 * SECOND).await,
    ];
    // So that both listen already.
    for locks in [&dropping, &next] {
        let guard = take(&holder, "a").await;
        let waiter = acquiring(locks.mutex("a"));
        sleep(100 * MILLI).await;
        give_back(hand_over(guard, waiter).await).await;
    }
    for_each_poll_count(async |polls| {
        let guard = take(&holder, "a").await;
        let mutex = dropping.mutex("a");
        let dropped = tokio::spawn(async move { cancel_after(polls, mutex.acquire()).await });
        sleep(10 * MILLI).await;
        give_back(guard).await;
        let began = Instant::now();
        let done = come(dropped).await;
        let is_done = done.is_some();
        drop(done);
        give_back(take(&next, "a").await).await;
        // By itself it would be free after the grace period.
        assert!(began.elapsed() < GRACE / 2, "dropped after {polls} polls: {:?}", began.elapsed());
        is_done.then_some(())
    })
    .await;
    sleep(SECOND).await;
    assert!(
        fleet.is_free()
            && (0..3).all(|master| fleet.command(master, &format!("ZCARD {LINE}")).int() == Some(0))
    );
}
