//! Ghosts: entries of the wait queue without an acquisition, whose process still listens.
//!
//! A server that hung carries out what it had buffered long after the caller gave up, and a promoted replica has entries
//! that the old master had removed. The process that is notified of such a grant releases it at once.

use std::collections::BTreeSet;
use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{Guard, Locks};
use lock_testkit::{
    LogCapture, RedisCluster, RedisSentinel, RedisServer, Worker, acquiring, give_back, hand_over, queue_up,
    take, until,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::common::{KEY, QUEUE, TOKENS, client, connect, nothing_is_left, queue_is};

const GHOSTS: usize = 40;

/// A client that listens, as one that has waited.
async fn listening(redis: &RedisServer, holder: &Locks) -> Locks {
    let locks = client(redis, "ttl=60s").await;
    let guard = take(holder, "a").await;
    give_back(hand_over(guard, queue_up(&locks, "a").await).await).await;
    locks
}

/// The queue entries of acquisitions of these clients that have given up, of these modes in turns. The lock is held.
async fn ghosts(redis: &RedisServer, clients: &[&Locks], modes: &[&str]) -> Vec<String> {
    let mut entries = Vec::new();
    for number in 0..GHOSTS {
        let locks = clients[number % clients.len()].clone();
        let waiter = match modes[number % modes.len()] {
            "x" => tokio::spawn(async move { locks.mutex("a").acquire().await }),
            "r" => tokio::spawn(async move { locks.rw("a").read().await }),
            max => {
                let max = max.parse().unwrap();
                tokio::spawn(async move { locks.semaphore("a", max).acquire().await })
            }
        };
        queue_is(redis, 1).await;
        entries.push(redis.call(&["LINDEX", QUEUE, "0"]).await.text().unwrap().to_owned());
        waiter.abort();
        queue_is(redis, 0).await;
    }
    entries
}

async fn haunt(redis: &RedisServer, ghosts: &[String]) {
    for entry in ghosts {
        redis.call(&["RPUSH", QUEUE, entry]).await;
    }
}

/// Waits behind the ghosts.
async fn waits_behind(redis: &RedisServer, locks: &Locks) -> JoinHandle<Guard> {
    let waiter = acquiring(locks.mutex("a"));
    queue_is(redis, 1 + GHOSTS).await;
    waiter
}

/// Each is kept for a second if it is not returned: longer than a test is patient.
#[tokio::test(flavor = "multi_thread")]
async fn unclaimed_grants_are_returned_at_once() {
    for modes in [&["x"][..], &["r"], &["2"], &["x", "r", "2"]] {
        let redis = RedisServer::start().await.unwrap();
        let holder = client(&redis, "ttl=60s").await;
        for processes in [1, 4] {
            let mut clients = Vec::new();
            for _ in 0..processes {
                clients.push(listening(&redis, &holder).await);
            }
            let guard = take(&holder, "a").await;
            haunt(&redis, &ghosts(&redis, &clients.iter().collect::<Vec<_>>(), modes).await).await;
            let waiter = waits_behind(&redis, &clients[0]).await;
            give_back(hand_over(guard, waiter).await).await;
            nothing_is_left(&redis).await;
        }
    }
}

/// How many grants the warnings say were returned.
fn reported(log: &LogCapture) -> Vec<u64> {
    let number = |line: &str| line.split("given_back=").nth(1)?.split(' ').next()?.parse().ok();
    log.warnings("given_back").iter().map(|line| number(line).unwrap()).collect()
}

#[tokio::test]
async fn one_warning_reports_how_many_were_returned() {
    let (log, _guard) = LogCapture::begin();
    let redis = RedisServer::start().await.unwrap();
    let holder = client(&redis, "ttl=60s").await;
    let client = listening(&redis, &holder).await;
    let guard = take(&holder, "a").await;
    let ghosts = ghosts(&redis, &[&client], &["x"]).await;
    give_back(guard).await;
    // A waiter that leaves just when the lock is handed over to it is nothing unusual.
    for round in 0..100 {
        let guard = take(&holder, "a").await;
        let waiter = acquiring(client.mutex("a"));
        queue_is(&redis, 1).await;
        give_back(guard).await;
        // Time: any moment of the hand-over.
        sleep(Duration::from_micros(10 * round)).await;
        waiter.abort();
        drop(waiter.await);
    }
    let guard = take(&holder, "a").await;
    haunt(&redis, &ghosts).await;
    let guard = hand_over(guard, waits_behind(&redis, &client).await).await;
    // All that is returned within a second is in one warning.
    until("all are reported", async || reported(&log).iter().sum::<u64>() >= GHOSTS as u64).await;
    assert_eq!(reported(&log).iter().sum::<u64>(), GHOSTS as u64);
    assert!(reported(&log).len() <= 2, "{:?}", reported(&log));
    give_back(guard).await;
}

/// Nor does a process that was closed: it does not listen.
#[tokio::test(flavor = "multi_thread")]
async fn ghosts_of_a_closed_process_cost_nothing() {
    let redis = RedisServer::start().await.unwrap();
    let holder = client(&redis, "ttl=60s").await;
    let (closed, next) = (listening(&redis, &holder).await, listening(&redis, &holder).await);
    let guard = take(&holder, "a").await;
    haunt(&redis, &ghosts(&redis, &[&closed], &["x"]).await).await;
    let waiter = waits_behind(&redis, &next).await;
    closed.close().await.unwrap();
    give_back(hand_over(guard, waiter).await).await;
}

// ---- Under contention ----

/// Clients that acquire the lock and release it, over and over. It ends when it is dropped.
struct Contest {
    tasks: JoinSet<()>,
    /// How often each was granted the lock.
    grants: Arc<Vec<AtomicUsize>>,
}

impl Contest {
    async fn start(url: &str, clients: usize) -> Self {
        let grants: Arc<Vec<_>> = Arc::new((0..clients).map(|_| AtomicUsize::new(0)).collect());
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let (locks, grants) = (connect(url).await, Arc::clone(&grants));
            tasks.spawn(async move {
                loop {
                    let acquired = locks.mutex("a").acquire().await;
                    // Time: others queue up meanwhile, or the outage passes.
                    sleep(Duration::from_millis(5)).await;
                    if let Ok(guard) = acquired {
                        grants[client].fetch_add(1, Ordering::Relaxed);
                        drop(guard.release().await);
                    }
                }
            });
        }
        Self { tasks, grants }
    }

    /// Demands that every client is granted the lock again, several times.
    async fn goes_on(&self) {
        assert!(!self.tasks.is_empty());
        let counts = || self.grants.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = counts();
        until("every client is granted the lock again", async || {
            counts().iter().zip(&before).all(|(now, before)| *now >= before + 10)
        })
        .await;
    }
}

/// For longer than clients wait for an answer.
async fn is_frozen(server: &RedisServer) {
    server.stop();
    // Time: as above.
    sleep(Duration::from_secs(5)).await;
    server.cont();
}

/// Its leases are longer than a test is patient: what is carried out late has to be taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_frozen_grants_again_within_a_lease_to_12() {
    let redis = RedisServer::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=60s", redis.url()), 12).await;
    contest.goes_on().await;
    is_frozen(&redis).await;
    contest.goes_on().await;
}

/// The far end: takes the lock and releases it, over and over.
#[tokio::test(flavor = "multi_thread")]
async fn worker() {
    let Ok(url) = env::var("GHOSTS_WORKER") else { return };
    let _contest = Contest::start(&url, 1).await;
    std::future::pending::<()>().await;
}

/// The same with a process for each client; grants are seen by the last token.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn a_server_that_was_frozen_grants_again_within_a_lease_to_12_processes() {
    let redis = RedisServer::start().await.unwrap();
    let mut command_line = Command::new(env::current_exe().unwrap());
    command_line.args(["--exact", "waiting::ghosts::worker", "--nocapture"]);
    command_line.env("GHOSTS_WORKER", format!("{}?ttl=60s", redis.url()));
    let _workers: Vec<Worker> = (0..12).map(|_| Worker::spawn(&command_line).unwrap()).collect();
    let goes_on = async || {
        let mut tokens = BTreeSet::new();
        until("the lock is granted again and again", async || {
            tokens.insert(redis.text(&["ZSCORE", TOKENS, "last"]).await);
            tokens.len() > 50
        })
        .await;
    };
    goes_on().await;
    is_frozen(&redis).await;
    goes_on().await;
}

/// A request that was buffered for longer than its clean-up would have taken is cleaned up all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_server_carries_out_late_is_taken_back() {
    let redis = RedisServer::start().await.unwrap();
    let guard = take(&client(&redis, "ttl=60s").await, "a").await;
    // It keeps the queue, which would end by itself.
    let waiter = queue_up(&client(&redis, "ttl=60s&command_timeout=20s").await, "a").await;
    // Time: that requests are given up is the point.
    let locks = client(&redis, "ttl=60s&command_timeout=300ms&connect_timeout=300ms").await;
    // The first wait opens the push connection, so that the second queues up with its first request.
    let patience = Duration::from_millis(300); // Time: as above.
    assert!(locks.mutex("a").try_acquire_for(patience).await.unwrap().is_none());
    queue_is(&redis, 1).await;
    let asked = redis.calls_of("evalsha").await;
    redis.stop();
    let given_up = locks.mutex("a").try_acquire_for(Duration::from_secs(10)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    // Time: for longer than it is cleaned up after.
    sleep(Duration::from_secs(3)).await;
    redis.cont();
    until("it is carried out", async || redis.calls_of("evalsha").await > asked + 1).await;
    queue_is(&redis, 1).await;
    give_back(hand_over(guard, waiter).await).await;
    nothing_is_left(&redis).await;
}

/// The promoted replica has entries that the old master's answers had settled, and maybe a lock that was released.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn a_planned_failover_leaves_no_ghosts_that_cost_time() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=5s", sentinel.url()), 24).await;
    contest.goes_on().await;
    sentinel.sentinels()[0].call(&["SENTINEL", "FAILOVER", RedisSentinel::NAME]).await;
    until("a failover", async || sentinel.servers()[0].role().await.as_deref() == Some("slave")).await;
    contest.goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn a_cluster_node_that_was_frozen_grants_again_within_a_lease() {
    let cluster = RedisCluster::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=60s", cluster.url()), 16).await;
    contest.goes_on().await;
    let slot = usize::from(cluster.slot(KEY).await.unwrap());
    is_frozen(&cluster.masters()[slot * cluster.masters().len() / 16_384]).await;
    contest.goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn databases_that_are_swapped_and_swapped_back_leave_no_ghosts_that_cost_time() {
    let redis = RedisServer::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=5s", redis.url()), 12).await;
    contest.goes_on().await;
    redis.call(&["SWAPDB", "0", "1"]).await;
    contest.goes_on().await;
    redis.call(&["SWAPDB", "0", "1"]).await;
    contest.goes_on().await;
}
