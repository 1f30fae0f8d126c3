//! Thousands of locks in one process, with long names, when connections break and servers restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Server, Servers, client, connect, proxy, through};
use async_trait::async_trait;
use futures_util::stream::{StreamExt, iter};
use lock_core::{Guard, GuardState, LockOptions, Locks, LossReason, Released};
use lock_testkit::{FaultProxy, ZooKeeper};
use lock_zk::zookeeper_client::{Connector, Error};
use lock_zk::{DriverSession, Ensemble, SessionClient, ZkConfig};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Long enough for thousands of requests on a noisy machine.
const PATIENT: Duration = Duration::from_secs(20);
/// How many requests of a test are under way at a time.
const AT_ONCE: usize = 200;

/// A name of 250 bytes.
fn name(kind: &str, number: usize) -> String {
    format!("{:-<250}", format!("{kind}{number}"))
}

async fn take(locks: &Locks, kind: &str, count: usize) -> Vec<Guard> {
    let taken = (0..count).map(|number| async move {
        let lock = locks.mutex(name(kind, number));
        lock.try_acquire().await.unwrap().expect("no other client wants it")
    });
    iter(taken).buffered(AT_ONCE).collect().await
}

/// Waits until every session of these locks is confirmed again.
async fn until_confirmed(guards: &[Guard], after: &str) {
    let start = Instant::now();
    let confirmed = iter(guards.iter()).for_each_concurrent(AT_ONCE, |guard| async move {
        loop {
            match guard.verify().await {
                Ok(standing) => {
                    break assert_eq!(standing, GuardState::Valid, "after {after}: {}", guard.name());
                }
                Err(error) => assert!(start.elapsed() < 3 * PATIENT, "after {after}: {error}"),
            }
        }
    });
    confirmed.await;
}

async fn release(guards: Vec<Guard>) {
    iter(guards)
        .for_each_concurrent(AT_ONCE, |guard| async {
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        })
        .await;
}

/// Waiters for all these locks, which others hold.
async fn wait_for(locks: &Locks, kind: &str, count: usize) -> Vec<JoinHandle<Guard>> {
    let positions = Arc::new(AtomicUsize::new(0));
    let waiters = (0..count).map(|number| {
        let positions = Arc::clone(&positions);
        let queued = move |_| {
            positions.fetch_add(1, Ordering::Relaxed);
        };
        let options = LockOptions::new().on_queued(queued);
        let lock = locks.mutex_with(name(kind, number), options).unwrap();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    });
    let waiters = waiters.collect();
    let start = Instant::now();
    while positions.load(Ordering::Relaxed) < count {
        assert!(start.elapsed() < 6 * PATIENT, "{positions:?} of {count} wait");
        sleep(Duration::from_millis(50)).await;
    }
    waiters
}

/// By then every node that is to be watched is.
async fn until_watched() {
    sleep(Duration::from_millis(500)).await;
}

/// The paths of these locks are more than the driver sets again in one request, and the chroot is part of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn a_thousand_locks_with_long_names_survive_a_reset() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let chroot = format!("/{:c<150}", "");
    let config = through(&proxy).session_timeout(PATIENT / 2).chroot(chroot).create_chroot(true);
    let locks = crate::common::opened(&config).await;
    let guards = take(&locks, "held", 1_000).await;
    until_watched().await;
    let counters = server.mntr().await.unwrap();
    // No more sessions than are needed, and the one that asks.
    assert_eq!((&counters["zk_num_alive_connections"][..], &counters["zk_watch_count"][..]), ("5", "1004"));
    proxy.rst();
    until_confirmed(&guards, "a reset").await;
    release(guards).await;
}

/// Only the ensemble knows the chroot, as it connects by its own connector.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn the_chroot_of_an_ensemble_counts_as_well() {
    let server = crate::common::server().await;
    let (proxy, client) = (proxy(&server), client(&server).await);
    let chroot = format!("/{:c<150}", "");
    crate::common::mkdir(&client, &chroot).await;
    drop(client);
    let ensemble = Arc::new(OwnConnector { host: proxy.addr().to_string(), chroot });
    let locks = crate::common::opened(&through(&proxy).session_timeout(PATIENT / 2).ensemble(ensemble)).await;
    let guards = take(&locks, "held", 400).await;
    until_watched().await;
    proxy.rst();
    until_confirmed(&guards, "a reset").await;
    release(guards).await;
}

/// Connects as a program may do it.
#[derive(Debug)]
struct OwnConnector {
    host: String,
    chroot: String,
}

#[async_trait]
impl Ensemble for OwnConnector {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let chroot = self.chroot.clone();
        let connect = move |connector: Connector, host: String| {
            let host = format!("{host}{chroot}");
            async move { connector.connect(&host).await }
        };
        Ok(Arc::new(DriverSession::open(&self.host, session_timeout, connect).await?))
    }
}

/// The servers are away for as long as one opening takes, and well after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn after_an_opening_that_failed_locks_do_not_pile_up_in_a_full_session() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let impatient = Duration::from_millis(300);
    let locks =
        crate::common::opened(&through(&proxy).session_timeout(PATIENT / 2).connect_timeout(impatient)).await;
    let mut guards = take(&locks, "full", 388).await;
    proxy.refuse(true);
    guards.extend(take(&locks, "beyond", 1).await);
    proxy.refuse(false);
    let (start, mut number) = (Instant::now(), 0);
    // The question is one.
    while server.mntr().await.unwrap()["zk_num_alive_connections"] == "2" {
        assert!(start.elapsed() < Duration::from_secs(5), "no further session is opened");
        sleep(impatient).await;
        guards.extend(take(&locks, &format!("{number}."), 1).await);
        number += 1;
    }
    guards.extend(take(&locks, "more", 1_000).await);
    until_watched().await;
    let counters = server.mntr().await.unwrap();
    let (sessions, watches) = (&counters["zk_num_alive_connections"], &counters["zk_watch_count"]);
    let sessions = sessions.parse::<usize>().unwrap() - 1;
    assert!(sessions >= 4, "{sessions}");
    assert_eq!(watches.parse::<usize>().unwrap(), guards.len() + sessions);
    proxy.rst();
    until_confirmed(&guards, "a reset").await;
    release(guards).await;
}

/// A server limits the connections of one host, and with them the sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn where_no_further_session_is_to_be_had_locks_are_taken_all_the_same() {
    // One for each client of this test.
    let server = Server::from(ZooKeeper::builder().config("maxClientCnxns", "3").start().await.unwrap());
    let proxy = proxy(&server);
    let (theirs, client) = (connect(&server).await, client(&server).await);
    let impatient = Duration::from_millis(300);
    let locks =
        crate::common::opened(&through(&proxy).session_timeout(PATIENT / 2).connect_timeout(impatient)).await;
    let mut guards = take(&locks, "held", 500).await;
    let start = Instant::now();
    for number in 0..100 {
        guards.extend(take(&locks, &format!("{number}."), 1).await);
    }
    assert!(start.elapsed() < 80 * impatient, "not every lock tries in vain to open a session");
    until_watched().await;
    proxy.rst();
    until_confirmed(&guards, "a reset").await;

    // The last one is not watched, but looked at.
    let removed = guards.pop().unwrap();
    let dir = format!("/locks/{}", name("99.", 0));
    let [node] = &client.list_children(&dir).await.unwrap()[..] else { panic!("one holder") };
    client.delete(&format!("{dir}/{node}"), None).await.unwrap();
    assert_eq!(timeout(PATIENT, removed.lost()).await.expect("it is noticed"), LossReason::Removed);

    let held = take(&theirs, "theirs", 1).await;
    let waiters = wait_for(&locks, "theirs", 1).await;
    release(held).await;
    for waiter in waiters {
        guards.push(timeout(PATIENT, waiter).await.expect("it gets its turn").unwrap());
    }
    release(guards).await;
}

/// What runs at night.
mod deep {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: a minute and more"]
    async fn five_thousand_locks_and_as_many_waiters_survive_whatever_breaks_their_connections() {
        let ensemble = Servers::start().await;
        let proxies: Vec<_> = ensemble.nodes().iter().map(proxy).collect();
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        let config = |hosts: String| ZkConfig::new(hosts).session_timeout(2 * PATIENT).private_session(true);
        let theirs = crate::common::opened(&config(ensemble.connect_string())).await;
        let ours = crate::common::opened(&config(hosts.join(","))).await;
        let (count, theirs_held) = (5_000, take(&theirs, "theirs", 5_000).await);
        let held = take(&ours, "ours", count).await;
        let waiters = wait_for(&ours, "theirs", count).await;
        until_watched().await;

        proxies.iter().for_each(FaultProxy::rst);
        until_confirmed(&held, "a reset").await;
        proxies.iter().for_each(FaultProxy::fin);
        until_confirmed(&held, "a FIN").await;
        // All sessions move.
        for (away, proxy) in proxies.iter().enumerate() {
            proxy.refuse(true);
            proxy.rst();
            until_confirmed(&held, &format!("a move away from server {away}")).await;
            proxy.refuse(false);
        }
        for index in 0..3 {
            ensemble.restart(index).await.unwrap();
            until_confirmed(&held, &format!("a restart of server {index}")).await;
        }

        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "their locks were held all the time");
        release(held).await;
        release(theirs_held).await;
        let granted = iter(waiters).map(|waiter| async { waiter.await.unwrap() });
        let granted = timeout(3 * PATIENT, granted.buffered(count).collect::<Vec<_>>()).await;
        release(granted.expect("every waiter gets its lock")).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: a minute and more"]
    async fn twenty_thousand_held_locks_survive_a_reset() {
        let server = crate::common::server().await;
        let proxy = proxy(&server);
        let locks = crate::common::opened(&through(&proxy).session_timeout(2 * PATIENT)).await;
        let guards = take(&locks, "held", 20_000).await;
        until_watched().await;
        proxy.rst();
        until_confirmed(&guards, "a reset").await;
        release(guards).await;
    }
}
