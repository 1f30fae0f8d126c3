//! Ghosts: entries of the wait queue without an acquisition, whose process still listens.
//!
//! A server that hung carries out what it had buffered long after the caller gave up, and a promoted replica has entries
//! that the old master had removed. The process that is notified of such a grant releases it at once.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{Guard, Locks};
use lock_testkit::{
    LogCapture, RedisCluster, RedisSentinel, RedisServer, Worker, acquiring, give_back, until,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(20);
const KEY: &str = "lock:a";
const QUEUE: &str = "polylock:queue:{lock:a}";
const GHOSTS: usize = 40;
/// A grant that nobody returns is kept for a second: far less than the grace of one ghost.
const AT_ONCE: Duration = Duration::from_millis(700);

async fn take(locks: &Locks) -> Guard {
    timeout(PATIENCE, locks.mutex("a").acquire()).await.unwrap().unwrap()
}

async fn queue_is(redis: &RedisServer, wanted: i64) {
    until(&format!("the queue is not {wanted} long"), async || {
        redis.call(&["LLEN", QUEUE]).await.int() == Some(wanted)
    })
    .await;
}

/// A client that listens, as one that has waited.
async fn listening(redis: &RedisServer, holder: &Locks) -> Locks {
    let locks = connect(&format!("{}?ttl=60s", redis.url())).await;
    let guard = take(holder).await;
    let waiter = acquiring(locks.mutex("a"));
    queue_is(redis, 1).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
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

fn waits(locks: &Locks) -> JoinHandle<(Guard, Instant)> {
    let mutex = locks.mutex("a");
    tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) })
}

#[tokio::test(flavor = "multi_thread")]
async fn unclaimed_grants_are_returned_at_once() {
    for modes in [&["x"][..], &["r"], &["2"], &["x", "r", "2"]] {
        let redis = RedisServer::start().await.unwrap();
        let holder = connect(&format!("{}?ttl=60s", redis.url())).await;
        for processes in [1, 4] {
            let mut clients = Vec::new();
            for _ in 0..processes {
                clients.push(listening(&redis, &holder).await);
            }
            let guard = take(&holder).await;
            haunt(&redis, &ghosts(&redis, &clients.iter().collect::<Vec<_>>(), modes).await).await;
            let waiter = waits(&clients[0]);
            queue_is(&redis, 1 + GHOSTS as i64).await;
            let released = Instant::now();
            guard.release().await.unwrap();
            let (guard, came) = timeout(PATIENCE, waiter).await.expect("the ghosts keep the lock").unwrap();
            let took = came.saturating_duration_since(released);
            println!("{GHOSTS} ghosts {modes:?} in {processes} processes: {took:?}");
            assert!(took < AT_ONCE, "{GHOSTS} ghosts {modes:?} in {processes} processes cost {took:?}");
            give_back(guard).await;
            assert_eq!(redis.call(&["EXISTS", KEY, QUEUE]).await.int(), Some(0));
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
    let holder = connect(&format!("{}?ttl=60s", redis.url())).await;
    let client = listening(&redis, &holder).await;
    let guard = take(&holder).await;
    let ghosts = ghosts(&redis, &[&client], &["x"]).await;
    guard.release().await.unwrap();
    // A waiter that leaves just when the lock is handed over to it is nothing unusual.
    for round in 0..100 {
        let guard = take(&holder).await;
        let mutex = client.mutex("a");
        let waiter = tokio::spawn(async move { mutex.try_acquire_for(Duration::from_secs(5)).await });
        queue_is(&redis, 1).await;
        guard.release().await.unwrap();
        sleep(Duration::from_micros(10 * round)).await;
        waiter.abort();
        drop(waiter.await);
    }
    let guard = take(&holder).await;
    haunt(&redis, &ghosts).await;
    let waiter = waits(&client);
    queue_is(&redis, 1 + GHOSTS as i64).await;
    guard.release().await.unwrap();
    let (guard, _) = waiter.await.unwrap();
    // All that is returned within a second is in one warning.
    let told = async {
        while reported(&log).is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("a warning");
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(reported(&log).iter().sum::<u64>(), GHOSTS as u64);
    assert!(reported(&log).len() <= 2, "{:?}", reported(&log));
    guard.release().await.unwrap();
}

/// Nor does a process that was closed: it does not listen.
#[tokio::test(flavor = "multi_thread")]
async fn ghosts_of_a_closed_process_cost_nothing() {
    let redis = RedisServer::start().await.unwrap();
    let holder = connect(&format!("{}?ttl=60s", redis.url())).await;
    let (closed, next) = (listening(&redis, &holder).await, listening(&redis, &holder).await);
    let guard = take(&holder).await;
    haunt(&redis, &ghosts(&redis, &[&closed], &["x"]).await).await;
    let waiter = waits(&next);
    queue_is(&redis, 1 + GHOSTS as i64).await;
    closed.close().await.unwrap();
    let released = Instant::now();
    guard.release().await.unwrap();
    let (_guard, came) = timeout(PATIENCE, waiter).await.expect("the ghosts keep the lock").unwrap();
    // One grant may be on its way while it is closed.
    let took = came.saturating_duration_since(released);
    assert!(took < Duration::from_secs(1) + AT_ONCE, "{took:?}");
}

/// What a waiter of several acquisitions was notified of, over and over.
struct Contest {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    /// When the lock was last granted, and the longest time without a grant since.
    grants: Arc<std::sync::Mutex<Vec<Instant>>>,
}

impl Contest {
    async fn start(url: &str, clients: usize) -> Self {
        let (stop, grants) = (Arc::<AtomicBool>::default(), Arc::<std::sync::Mutex<Vec<Instant>>>::default());
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let (locks, stop, grants) = (connect(url).await, Arc::clone(&stop), Arc::clone(&grants));
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match locks.mutex("a").acquire().await {
                        Ok(guard) => {
                            grants.lock().unwrap().push(Instant::now());
                            sleep(Duration::from_millis(5)).await;
                            drop(guard.release().await);
                        }
                        Err(_) => sleep(Duration::from_millis(50)).await,
                    }
                }
            }));
        }
        Self { stop, clients: tasks, grants }
    }

    /// The longest time without a grant from `since` on.
    async fn longest_gap(self, since: Instant, watched: Duration) -> Duration {
        sleep(watched.saturating_sub(since.elapsed())).await;
        let end = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let grants: Vec<Instant> =
            self.grants.lock().unwrap().iter().copied().filter(|at| *at >= since).collect();
        self.clients.iter().for_each(JoinHandle::abort);
        let times: Vec<Instant> = [since].into_iter().chain(grants).chain([end]).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }
}

async fn a_frozen_server(clients: usize) {
    let redis = RedisServer::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=2s", redis.url()), clients).await;
    sleep(Duration::from_secs(2)).await;
    redis.stop();
    sleep(Duration::from_secs(5)).await;
    redis.cont();
    let gap = contest.longest_gap(Instant::now(), Duration::from_secs(8)).await;
    println!("{clients} clients, server frozen for 5 s: {gap:?} without a grant");
    assert!(gap < Duration::from_secs(4), "{gap:?} without a grant after the server went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_frozen_grants_again_within_a_lease_to_12() {
    a_frozen_server(12).await;
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
    command_line.args(["--exact", "ghosts::worker", "--nocapture"]);
    command_line.env("GHOSTS_WORKER", format!("{}?ttl=2s", redis.url()));
    let _workers: Vec<Worker> = (0..12).map(|_| Worker::spawn(&command_line).unwrap()).collect();
    sleep(Duration::from_secs(3)).await;
    redis.stop();
    sleep(Duration::from_secs(5)).await;
    redis.cont();
    let (thawed, mut last, mut longest) = (Instant::now(), None, Duration::ZERO);
    let mut granted = thawed;
    while thawed.elapsed() < Duration::from_secs(8) {
        let score = redis.call(&["ZSCORE", "polylock:tokens:{lock:a}", "last"]).await;
        let token = score.text().map(str::to_owned);
        longest = longest.max(granted.elapsed());
        if token != last {
            (last, granted) = (token, Instant::now());
        }
        sleep(Duration::from_millis(5)).await;
    }
    println!("12 processes, server frozen for 5 s: {longest:?} without a grant");
    assert!(last.is_some() && longest < Duration::from_secs(4), "{longest:?} without a grant");
}

/// A request that was buffered for longer than its clean-up would have taken is cleaned up all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_server_carries_out_late_is_taken_back() {
    let redis = RedisServer::start().await.unwrap();
    let options = "ttl=500ms&command_timeout=300ms&connect_timeout=300ms";
    let locks = connect(&format!("{}?{options}", redis.url())).await;
    let client = listening(&redis, &locks).await;
    drop(client);
    // The first wait opens the push connection, so that the second queues up with its first request.
    redis.call(&["SET", KEY, "other"]).await;
    assert!(locks.mutex("a").try_acquire_for(Duration::from_millis(300)).await.unwrap().is_none());
    queue_is(&redis, 0).await;
    redis.stop();
    let given_up = locks.mutex("a").try_acquire_for(Duration::from_secs(10)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    sleep(Duration::from_secs(3)).await;
    redis.cont();
    // By itself the queue would end after five seconds.
    let thawed = Instant::now();
    let mut was_late = false;
    while thawed.elapsed() < Duration::from_millis(200) || redis.call(&["LLEN", QUEUE]).await.int() != Some(0)
    {
        was_late |= redis.call(&["LLEN", QUEUE]).await.int() != Some(0);
        assert!(thawed.elapsed() < Duration::from_secs(3), "what was carried out late stays");
        sleep(Duration::from_millis(1)).await;
    }
    println!("seen in the queue: {was_late}; gone after {:?}", thawed.elapsed());
}

/// The promoted replica has entries that the old master's answers had settled.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn a_planned_failover_leaves_no_ghosts_that_cost_time() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=2s", sentinel.url()), 24).await;
    sleep(Duration::from_secs(2)).await;
    let before = Instant::now();
    let failover = ["SENTINEL", "FAILOVER", RedisSentinel::NAME];
    let answer = sentinel.sentinels()[0].command(&failover).await.unwrap();
    assert!(!answer.is_error(), "{answer:?}");
    while sentinel.servers()[0].role().await.as_deref() != Some("slave") {
        assert!(before.elapsed() < PATIENCE, "there is no failover");
        sleep(Duration::from_millis(50)).await;
    }
    let gap = contest.longest_gap(Instant::now(), Duration::from_secs(10)).await;
    println!("24 clients, planned failover: {gap:?} without a grant");
    assert!(gap < Duration::from_secs(4), "{gap:?} without a grant after the failover");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn a_cluster_node_that_was_frozen_grants_again_within_a_lease() {
    let cluster = RedisCluster::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=2s", cluster.url()), 16).await;
    let slot = usize::from(cluster.slot(KEY).await.unwrap());
    let node = &cluster.masters()[slot * cluster.masters().len() / 16_384];
    sleep(Duration::from_secs(2)).await;
    node.stop();
    sleep(Duration::from_secs(5)).await;
    node.cont();
    let gap = contest.longest_gap(Instant::now(), Duration::from_secs(10)).await;
    println!("16 clients, cluster node frozen for 5 s: {gap:?} without a grant");
    // Its failure has to be forgotten by the others first.
    assert!(gap < Duration::from_secs(6), "{gap:?} without a grant after the node went on");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: many seconds of contention"]
async fn databases_that_are_swapped_and_swapped_back_leave_no_ghosts_that_cost_time() {
    let redis = RedisServer::start().await.unwrap();
    let contest = Contest::start(&format!("{}?ttl=2s", redis.url()), 12).await;
    sleep(Duration::from_secs(1)).await;
    redis.call(&["SWAPDB", "0", "1"]).await;
    sleep(Duration::from_secs(1)).await;
    redis.call(&["SWAPDB", "0", "1"]).await;
    let gap = contest.longest_gap(Instant::now(), Duration::from_secs(8)).await;
    println!("12 clients, databases swapped for 1 s: {gap:?} without a grant");
    assert!(gap < Duration::from_secs(4), "{gap:?} without a grant after the databases were swapped back");
}
