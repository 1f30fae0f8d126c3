//! Thousands of locks in one process, with long names, when connections break and servers restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{StreamExt, iter};
use lock_core::{Guard, GuardState, LockOptions, Locks, LossReason};
use lock_testkit::proxy::FaultProxy;
use lock_testkit::{ZkEnsemble, ZooKeeper};
use lock_zk::zookeeper_client::{Connector, Error};
use lock_zk::{DriverSession, Ensemble, SessionClient, ZkConfig};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::common::*;

/// Long enough for thousands of requests on a noisy machine.
const PATIENT: Duration = Duration::from_secs(60);
/// How many requests of a test are under way at a time.
const AT_ONCE: usize = 200;

/// A name of 250 bytes.
fn name(kind: &str, number: usize) -> String {
    format!("{:-<250}", format!("{kind}{number}"))
}

async fn hold(locks: &Locks, kind: &str, count: usize) -> Vec<Guard> {
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
                Ok(state) => break assert_eq!(state, GuardState::Valid, "after {after}: {}", guard.name()),
                Err(error) => assert!(start.elapsed() < PATIENT, "after {after}: {error}"),
            }
        }
    });
    confirmed.await;
}

async fn release(guards: Vec<Guard>) {
    iter(guards).for_each_concurrent(AT_ONCE, give_back).await;
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
        acquiring(locks.mutex_with(name(kind, number), options).unwrap())
    });
    let (waiters, queued) = (waiters.collect(), async || positions.load(Ordering::Relaxed) >= count);
    timeout(2 * PATIENT, async {
        while !queued().await {
            sleep(Duration::from_millis(50)).await; // Time: until it is looked again.
        }
    })
    .await
    .expect("all wait");
    waiters
}

/// By then every node that is to be watched is.
async fn until_watched() {
    // Time: watches are set in the background, and not for every node.
    sleep(Duration::from_millis(500)).await;
}

/// The connections of this server and its watches, without the question.
async fn sessions_and_watches(server: &ZooKeeper) -> (usize, usize) {
    let counters = server.mntr().await.unwrap();
    let [sessions, watches] =
        ["zk_num_alive_connections", "zk_watch_count"].map(|name| counters[name].parse::<usize>().unwrap());
    (sessions - 1, watches)
}

/// The paths of these locks are more than the driver sets again in one request, and the chroot is part of them: also where only
/// the ensemble knows it, as it connects by its own connector.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn locks_with_long_names_survive_a_reset() {
    for (has_connector, count) in [(false, 1_000), (true, 400)] {
        let server = server().await;
        let (proxy, chroot) = (proxy(&server), format!("/{:c<150}", ""));
        mkdir(&client(&server).await, &chroot).await;
        let config = through(&proxy).session_timeout(PATIENT);
        let config = if has_connector {
            let host = proxy.addr().to_string();
            config.ensemble(Arc::new(OwnConnector { host, chroot }))
        } else {
            config.chroot(chroot)
        };
        let locks = opened(&config).await;
        let guards = hold(&locks, "held", count).await;
        until_watched().await;
        if !has_connector {
            // No more sessions than are needed.
            until("only ours", async || sessions_and_watches(&server).await == (4, count + 4)).await;
        }
        proxy.rst();
        until_confirmed(&guards, "a reset").await;
        release(guards).await;
    }
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

/// For sessions that cannot be opened: an attempt ends soon.
fn impatient(proxy: &FaultProxy) -> ZkConfig {
    // Time: for how long an opening is tried is the subject.
    through(proxy).session_timeout(PATIENT).connect_timeout(Duration::from_millis(300))
}

/// The servers are away for as long as one opening takes, and well after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: thousands of locks"]
async fn after_an_opening_that_failed_locks_do_not_pile_up_in_a_full_session() {
    let server = server().await;
    let proxy = proxy(&server);
    let locks = opened(&impatient(&proxy)).await;
    let mut guards = hold(&locks, "full", 388).await;
    proxy.refuse(true);
    guards.extend(hold(&locks, "beyond", 1).await);
    proxy.refuse(false);
    let mut number = 0;
    until("a further session is opened", async || {
        guards.extend(hold(&locks, &format!("{number}."), 1).await);
        number += 1;
        sleep(Duration::from_millis(300)).await; // Time: an opening is not tried at once again.
        sessions_and_watches(&server).await.0 > 1
    })
    .await;
    guards.extend(hold(&locks, "more", 1_000).await);
    until_watched().await;
    let (sessions, watches) = sessions_and_watches(&server).await;
    assert!(sessions >= 4, "{sessions}");
    assert_eq!(watches, guards.len() + sessions);
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
    let locks = opened(&impatient(&proxy)).await;
    let mut guards = hold(&locks, "held", 500).await;
    let start = Instant::now();
    for number in 0..100 {
        guards.extend(hold(&locks, &format!("{number}."), 1).await);
    }
    // Not every lock tries in vain to open a session.
    assert!(start.elapsed() < PATIENCE_OF_80);
    until_watched().await;
    proxy.rst();
    until_confirmed(&guards, "a reset").await;

    // The last one is not watched, but looked at.
    let removed = guards.pop().unwrap();
    let dir = format!("/locks/{}", name("99.", 0));
    let [node] = &client.list_children(&dir).await.unwrap()[..] else { panic!("one holder") };
    client.delete(&format!("{dir}/{node}"), None).await.unwrap();
    assert_eq!(timeout(PATIENT, removed.lost()).await.expect("it is noticed"), LossReason::Removed);

    let held = hold(&theirs, "theirs", 1).await;
    let waiters = wait_for(&locks, "theirs", 1).await;
    release(held).await;
    for waiter in waiters {
        guards.push(come(waiter).await);
    }
    release(guards).await;
}

/// Time: as long as eighty openings that fail.
const PATIENCE_OF_80: Duration = Duration::from_millis(80 * 300);

/// What runs at night.
mod deep {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: a minute and more"]
    async fn five_thousand_locks_and_as_many_waiters_survive_whatever_breaks_their_connections() {
        let ensemble = Watched::from(ZkEnsemble::start().await.unwrap());
        let proxies: Vec<_> = ensemble.nodes().iter().map(proxy).collect();
        let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        let theirs = opened(&config_of(ensemble.connect_string()).session_timeout(PATIENT)).await;
        let ours = opened(&config_of(hosts.join(",")).session_timeout(PATIENT)).await;
        let (count, theirs_held) = (5_000, hold(&theirs, "theirs", 5_000).await);
        let held = hold(&ours, "ours", count).await;
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
        let granted = timeout(PATIENT, granted.buffered(count).collect::<Vec<_>>()).await;
        release(granted.expect("every waiter gets its lock")).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "deep: a minute and more"]
    async fn twenty_thousand_held_locks_survive_a_reset() {
        let server = server().await;
        let proxy = proxy(&server);
        let locks = opened(&through(&proxy).session_timeout(PATIENT)).await;
        let guards = hold(&locks, "held", 20_000).await;
        until_watched().await;
        proxy.rst();
        until_confirmed(&guards, "a reset").await;
        release(guards).await;
    }
}
