//! Observers of a lock: the requests by which they come and go, and the connection that listens.

use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{LockName, LockState, Locks, Result};
use lock_postgres::Fence;
use lock_testkit::{come, give_back, take, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::site::{LISTENERS, Site};

/// Time: how long an observer stays, so that it listens.
const MOMENT: Duration = Duration::from_millis(500);
/// Time: an observer is forgotten ten seconds after its end.
const NEARLY_FORGOTTEN: Duration = Duration::from_secs(9);
const OBSERVERS: &str = "SELECT count(*) FROM polylock.observer";

/// What a client has seen of the lock that is held.
struct Watch {
    locks: Locks,
    name: LockName,
    seen: LockState,
}

impl Watch {
    async fn new(locks: Locks) -> Self {
        let name = LockName::new("orders").unwrap();
        // Over two connections.
        let seen = join_all([locks.inspect("orders"), locks.inspect("orders")]).await.remove(0).unwrap();
        Self { locks, name, seen }
    }

    async fn observe_for_a_moment(&self) {
        timeout(MOMENT, self.locks.backend().await_change(&self.name, &self.seen)).await.unwrap_err();
    }

    fn observe(self) -> JoinHandle<Result<LockState>> {
        let Self { locks, name, seen } = self;
        tokio::spawn(async move { locks.backend().await_change(&name, &seen).await })
    }
}

/// Here that request is late, and comes after that of the next observer.
#[tokio::test]
#[ignore = "full: takes ten seconds"]
async fn the_end_of_an_observer_does_not_end_the_next_one() {
    let site = Site::private().await;
    let other = site.locks("&ttl=60s").await;
    let guard = take(&other, "orders").await;
    let options = "&ttl=60s&pool=2&command_timeout=20s&application_name=polylock-observer";
    let watch = Watch::new(site.locks(options).await).await;
    watch.observe_for_a_moment().await;
    // Time: until just before its end is sent.
    sleep(NEARLY_FORGOTTEN).await;
    let next = "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = 'polylock-observer' ORDER BY state_change DESC LIMIT 1";
    let session = site.number(next).await;
    let signal = |signal| kill_process(Pid::from_raw(session as i32).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    // Time: until it was sent, to a session that is paused.
    sleep(4 * MOMENT).await;
    let observer = watch.observe();
    // Time: until the next one is there.
    sleep(MOMENT).await;
    signal(Signal::CONT);
    until("one is left", async || site.number(OBSERVERS).await == 1).await;
    give_back(guard).await;
    assert!(!come(observer).await.unwrap().is_held());
}

#[tokio::test]
#[ignore = "full: seconds"]
async fn an_observer_hears_of_changes_when_the_connection_that_listens_was_replaced() {
    let site = Site::private().await;
    let other = site.locks("&ttl=60s&listen=off").await;
    let guard = take(&other, "orders").await;
    let watch = Watch::new(site.locks("&ttl=60s").await).await;
    // It listens from the second one on.
    watch.observe_for_a_moment().await;
    let observer = watch.observe();
    until("it observes", async || site.number(OBSERVERS).await == 1).await;
    let end = LISTENERS.replace("count(*)", "count(pg_terminate_backend(pid))");
    assert_eq!(site.number(&end).await, 1);
    until("it listens again", async || site.number(LISTENERS).await == 1).await;
    give_back(guard).await;
    assert!(!come(observer).await.unwrap().is_held());
}

/// Every role may repeat the message of a change.
#[tokio::test]
async fn a_flood_of_messages_of_changes_costs_neither_registrations_nor_tasks() {
    let site = Site::private().await;
    let other = site.locks("&ttl=60s").await;
    let guard = take(&other, "orders").await;
    let watch = Watch::new(site.locks("&ttl=60s").await).await;
    // It listens from the second one on.
    watch.observe_for_a_moment().await;
    let observer = watch.observe();
    until("it observes", async || site.number(OBSERVERS).await == 1).await;
    let sql = "SELECT 'polylock_' || inbox, 'changed:' || key, xmin::text FROM polylock.observer";
    let row = site.client().await.query_one(sql, &[]).await.unwrap();
    let (inbox, message, version): (String, String, String) = (row.get(0), row.get(1), row.get(2));
    let eve = site.client_of(&site.role("eve").await).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    for _ in 0..2_000 {
        eve.execute("SELECT pg_notify($1, $2)", &[&inbox, &message]).await.unwrap();
    }
    assert!(Handle::current().metrics().num_alive_tasks() < tasks + 20);
    let row = site.client().await.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(2), version, "it is registered as before");
    give_back(guard).await;
    assert!(!come(observer).await.unwrap().is_held());
}

#[tokio::test]
#[ignore = "full: takes ten seconds"]
async fn the_end_of_an_observer_that_finds_a_transaction_is_repeated() {
    let site = Site::open().await;
    let other = site.locks("&ttl=60s").await;
    let guard = take(&other, "orders").await;
    let watch = Watch::new(site.locks("&ttl=60s").await).await;
    watch.observe_for_a_moment().await;
    watch.observe_for_a_moment().await;
    assert_eq!(site.number(OBSERVERS).await, 1);
    let mut user = site.client().await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    // Time: until its end was sent.
    sleep(NEARLY_FORGOTTEN + 5 * MOMENT).await;
    transaction.commit().await.unwrap();
    until("it has ended", async || site.number(OBSERVERS).await == 0).await;
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: takes ten seconds"]
async fn an_observer_that_ends_outside_of_a_runtime_is_forgotten_as_well() {
    let site = Site::open().await;
    let other = site.locks("&ttl=60s").await;
    let guard = take(&other, "orders").await;
    let watch = Watch::new(site.locks("&ttl=60s").await).await;
    let Watch { locks, name, seen } = watch;
    let backend = locks.clone();
    let mut observer = Box::pin(async move { backend.backend().await_change(&name, &seen).await });
    // None has ended on a runtime before.
    until("it observes", async || {
        timeout(MOMENT, observer.as_mut()).await.unwrap_err();
        site.number(OBSERVERS).await == 1
    })
    .await;
    thread::spawn(move || drop(observer)).join().unwrap();
    until("it is forgotten", async || site.number(OBSERVERS).await == 0).await;
    give_back(guard).await;
}
