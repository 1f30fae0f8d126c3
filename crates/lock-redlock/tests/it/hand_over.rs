//! A release hands the lock over to the first waiter: what that takes, and what becomes of it where masters or waiters fail.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lock_core::{Guard, Locks, OwnerId, Released};
use lock_redlock::Redlock;
use lock_redlock::redis::{Client, aio::PubSub};
use lock_testkit::cancel::{cancel_after, for_each_poll_count};
use lock_testkit::{RedisFive, RedisServer, give_back, until};
use redis_link::message::Secret;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::backend;

const PATIENCE: Duration = Duration::from_secs(20);
/// How long a master keeps a lock for a waiter that does not confirm.
const GRACE: Duration = Duration::from_secs(1);
/// How long a waiter sleeps between two requests, at most.
const SLEEP: Duration = Duration::from_secs(2);
const LINE: &str = "polylock:line:{lock:a}";

/// A client of its own, as another process would be one. A master that a busy machine makes slow is not given up.
async fn client(masters: &RedisFive, ttl: &str) -> (Arc<Redlock>, Locks) {
    let url = format!("{}?ttl={ttl}&longest_ttl={ttl}&master_timeout=5s&connect_timeout=10s", masters.url());
    backend(&url).await
}

async fn acquire(locks: &Locks) -> Guard {
    timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap()
}

/// A waiter that is in the queues of these masters.
async fn waiter(locks: &Locks, queues: &[&RedisServer]) -> JoinHandle<Guard> {
    let mutex = locks.mutex("a");
    let waiter = tokio::spawn(async move { timeout(PATIENCE, mutex.acquire()).await.unwrap().unwrap() });
    for master in queues {
        until("it joins the queue", async || !queue(master).await.is_empty()).await;
    }
    waiter
}

async fn queue(master: &RedisServer) -> Vec<String> {
    let entries = master.call(&["ZRANGE", LINE, "0", "-1"]).await;
    entries.array().unwrap().iter().map(|entry| entry.text().unwrap().to_owned()).collect()
}

/// The owner id of the only waiter.
async fn queued_owner(master: &RedisServer) -> Option<String> {
    let entries = queue(master).await;
    let [entry] = &entries[..] else { return None };
    entry.split(':').next().map(str::to_owned)
}

/// Waits until the only waiter has joined the queues of these masters with another owner id than this one, and returns the new
/// one.
async fn rejoined(masters: &[&RedisServer], before: &Option<String>) -> String {
    until("it joins the queues again", async || {
        let first = queued_owner(masters[0]).await;
        let mut alike = first.is_some() && first != *before;
        for master in masters {
            alike &= queued_owner(master).await == first;
        }
        alike
    })
    .await;
    queued_owner(masters[0]).await.unwrap()
}

/// Says to a waiter, as a master does, that it was handed the lock.
async fn pretend(master: &RedisServer, entry: &str) {
    let words: Vec<_> = entry.split(' ').collect();
    let (owner, secret) = words[0].split_once(':').unwrap();
    let proof = Secret::new(OwnerId::decode(secret).unwrap()).proof("9000000000000", "lock:a");
    let text = format!("passed {owner} 9000000000000 {proof} lock:a");
    assert_eq!(master.call(&["PUBLISH", words[4], &text]).await.int(), Some(1), "{entry}");
}

/// A waiter whose process listens, and does nothing more: killed or frozen once it was handed the lock.
async fn frozen_waiter(master: &RedisServer) -> PubSub {
    let mut inbox = Client::open(master.url()).unwrap().get_async_pubsub().await.unwrap();
    inbox.subscribe("polylock:inbox:frozen").await.unwrap();
    let entry = format!("{0}:{0} 1000 604800000 21 polylock:inbox:frozen {{}}", "f".repeat(32));
    master.call(&["ZADD", LINE, "1", &entry]).await;
    inbox
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handed_over_is_confirmed_for_the_ttl_on_all_masters() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (backend, waiting)) = (client(&five, "60s").await, client(&five, "60s").await);
    let masters: Vec<_> = five.servers().iter().collect();
    let guard = acquire(&holder).await;
    let waiter = waiter(&waiting, &masters).await;
    // Two do not know of it.
    for master in &masters[..2] {
        master.call(&["DEL", LINE]).await;
    }
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert_eq!(backend.votes().handed_over, 1, "{}", backend.votes());
    for master in &masters {
        until("it is confirmed", async || master.call(&["PTTL", "lock:a"]).await.int().unwrap() > 30_000)
            .await;
    }
    sleep(GRACE).await;
    assert!(guard.is_valid());
    give_back(guard).await;
}

/// Some do so in asynchronous code, and their lock must not end for that reason.
async fn a_holder_that_keeps_its_thread_busy() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (backend, waiting)) = (client(&five, "60s").await, client(&five, "60s").await);
    let guard = acquire(&holder).await;
    let mutex = waiting.mutex("a");
    let waiter = tokio::spawn(async move {
        let guard = mutex.acquire().await.unwrap();
        std::thread::sleep(GRACE + Duration::from_millis(300));
        guard
    });
    for master in five.servers() {
        until("it joins the queue", async || queue(master).await.len() == 1).await;
    }
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert_eq!(backend.votes().handed_over, 1, "{}", backend.votes());
    let mut left = Vec::new();
    for master in five.servers() {
        left.push(master.call(&["PTTL", "lock:a"]).await.int().unwrap());
    }
    // The others may have been asked to extend what the release had not reached yet.
    assert!(left.iter().filter(|left| **left > 50_000).count() >= 3, "so many ms are left: {left:?}");
    drop(guard);
}

#[tokio::test]
async fn a_holder_that_blocks_its_thread_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_blocks_one_of_two_workers_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_holder_that_blocks_its_worker_keeps_a_lock_that_was_handed_over() {
    a_holder_that_keeps_its_thread_busy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_minority_does_not_keep_the_lock_from_being_handed_over() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (backend, waiting)) = (client(&five, "20s").await, client(&five, "20s").await);
    let masters: Vec<_> = five.servers().iter().collect();
    let guard = acquire(&holder).await;
    let waiter = waiter(&waiting, &masters).await;
    let before = queued_owner(masters[4]).await;
    masters[..2].iter().for_each(|master| master.kill());
    // The connections broke: it asks with another owner id.
    rejoined(&masters[2..], &before).await;
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert!(guard.is_valid());
    give_back(guard).await;
    assert_eq!(backend.votes().handed_over, 1, "{}", backend.votes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_handed_over_by_the_masters_that_did_not_restart() {
    let three = RedisFive::start_n(3).await.unwrap();
    let ((_, holder), (backend, waiting)) = (client(&three, "20s").await, client(&three, "20s").await);
    let masters = three.servers();
    let guard = acquire(&holder).await;
    let waiter = waiter(&waiting, &masters.iter().collect::<Vec<_>>()).await;
    let before = queued_owner(&masters[1]).await;
    masters[0].kill();
    masters[0].start_again().await.unwrap();
    // The connection broke: it asks with another owner id, and is in the queues of those that vote.
    rejoined(&[&masters[1], &masters[2]], &before).await;
    assert_eq!(queued_owner(&masters[0]).await, None);
    pretend(&masters[1], &queue(&masters[1]).await[0]).await;
    sleep(Duration::from_millis(300)).await;
    assert!(!waiter.is_finished(), "one of three is no quorum");
    assert!(guard.is_valid());
    let before = queued_owner(&masters[1]).await;
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert_eq!(Some(guard.owner().to_string()), before);
    give_back(guard).await;
    assert_eq!(backend.votes().handed_over, 1, "{}", backend.votes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_notification_is_not_believed() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (_, waiting)) = (client(&five, "20s").await, client(&five, "20s").await);
    let masters: Vec<_> = five.servers().iter().collect();
    let guard = acquire(&holder).await;
    let waiter = waiter(&waiting, &masters).await;
    sleep(GRACE).await;
    for master in &masters {
        pretend(master, &queue(master).await[0]).await;
    }
    sleep(Duration::from_millis(300)).await;
    assert!(
        !waiter.is_finished(),
        "what may have been handed over a grace period ago may be another's by now"
    );
    give_back(guard).await;
    assert_eq!(waiter.await.unwrap().release().await.unwrap(), Released::Released);
}

/// A waiter that some masters hand the lock over to, and others do not, asks them.
#[tokio::test(flavor = "multi_thread")]
async fn a_split_hand_over_is_decided_by_a_vote() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (backend, waiting)) = (client(&five, "20s").await, client(&five, "20s").await);
    let masters: Vec<_> = five.servers().iter().collect();
    let guard = acquire(&holder).await;
    let waiter = waiter(&waiting, &masters).await;
    // Three do not know of it.
    for master in &masters[..3] {
        master.call(&["DEL", LINE]).await;
    }
    let released = Instant::now();
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert!(released.elapsed() < GRACE, "{:?}", released.elapsed());
    assert_eq!(backend.votes().handed_over, 0);
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_dies_or_freezes_when_it_was_handed_the_lock_holds_it_for_the_grace_period() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (_, waiting)) = (client(&five, "60s").await, client(&five, "60s").await);
    let guard = acquire(&holder).await;
    let mut inboxes = Vec::new();
    for master in five.servers() {
        inboxes.push(frozen_waiter(master).await);
    }
    let waiter = waiter(&waiting, &[]).await;
    for master in five.servers() {
        until("both are in the queue", async || queue(master).await.len() == 2).await;
    }
    give_back(guard).await;
    let released = Instant::now();
    for inbox in &mut inboxes {
        let told: String = inbox.on_message().next().await.unwrap().get_payload().unwrap();
        assert!(told.starts_with("passed ffff"), "{told}");
    }
    let guard = waiter.await.unwrap();
    let took = released.elapsed();
    assert!(took > GRACE / 2, "it was handed over for {took:?} only");
    assert!(took < GRACE + SLEEP + Duration::from_secs(3), "{took:?} of a ttl of a minute");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_paused_when_it_is_handed_the_lock_does_not_believe_it_later() {
    let five = RedisFive::start().await.unwrap();
    let ((_, holder), (_, pausing)) = (client(&five, "60s").await, client(&five, "60s").await);
    let (_, other) = client(&five, "60s").await;
    let guard = acquire(&holder).await;
    let mutex = pausing.mutex("a");
    let mut paused = Box::pin(async move { mutex.acquire().await.unwrap() });
    for master in five.servers() {
        let deadline = Instant::now() + PATIENCE;
        while queue(master).await.is_empty() {
            assert!(Instant::now() < deadline, "it joins the queue");
            assert!(timeout(Duration::from_millis(5), &mut paused).await.is_err());
        }
    }
    let waiter = waiter(&other, &[]).await;
    for master in five.servers() {
        until("both are in the queue", async || queue(master).await.len() == 2).await;
    }
    // It is not polled from here on.
    give_back(guard).await;
    let guard = waiter.await.unwrap();
    assert!(timeout(Duration::from_millis(500), &mut paused).await.is_err(), "another has the lock");
    assert!(guard.is_valid());
    give_back(guard).await;
    let guard = timeout(PATIENCE, paused).await.unwrap();
    give_back(guard).await;
}

/// Whenever a waiter is dropped, before and after it was handed the lock: the next one gets it, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_is_dropped_at_any_point_hands_the_lock_on() {
    let three = RedisFive::start_n(3).await.unwrap();
    let ((_, holder), (backend, dropping)) = (client(&three, "60s").await, client(&three, "60s").await);
    let (_, next) = client(&three, "60s").await;
    // So that both listen already.
    for locks in [&dropping, &next] {
        let guard = acquire(&holder).await;
        let waiter = waiter(locks, &three.servers().iter().collect::<Vec<_>>()).await;
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
    }
    let polls = for_each_poll_count(async |polls| {
        let guard = acquire(&holder).await;
        let mutex = dropping.mutex("a");
        let dropped = tokio::spawn(async move { cancel_after(polls, mutex.acquire()).await });
        sleep(Duration::from_millis(4)).await;
        guard.release().await.unwrap();
        let began = Instant::now();
        let done = timeout(PATIENCE, dropped).await.unwrap().unwrap();
        let is_done = done.is_some();
        drop(done);
        acquire(&next).await.release().await.unwrap();
        // By itself it would be free after the grace period.
        assert!(began.elapsed() < GRACE * 9 / 10, "dropped after {polls} polls: {:?}", began.elapsed());
        is_done.then_some(())
    })
    .await;
    println!("{polls} polls; {}", backend.votes());
    for master in three.servers() {
        until("nothing is left", async || master.call(&["EXISTS", "lock:a", LINE]).await.int() == Some(0))
            .await;
    }
}
