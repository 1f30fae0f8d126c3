//! Connections that break, and servers that restart or stand still.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, GuardState, LockName, Outcome};
use lock_postgres::Fence;
use lock_testkit::postgres::PostgresServer;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use crate::site::{PATIENCE, Site, connect, take, until};

#[tokio::test]
async fn sessions_that_an_administrator_ends_are_opened_again() {
    let site = Site::open().await;
    let (one, two) = (site.locks("").await, site.locks("").await);
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn({
        let two = two.clone();
        async move { take(&two, "orders").await }
    });
    until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
    assert!(site.end_sessions().await >= 4, "two that listen, and two for requests");
    sleep(Duration::from_secs(4)).await;
    assert!(guard.is_valid(), "it is renewed over new connections");
    assert!(!waiter.is_finished());
    site.end_sessions().await;
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap();
    next.release().await.unwrap();
    take(&one, "orders").await.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_killed_keeps_locks_and_tokens() {
    let site = Site::private().await;
    let (one, two) = (site.locks("&ttl=20s").await, site.locks("&ttl=20s").await);
    let guard = take(&one, "orders").await;
    let waiter = tokio::spawn(async move { take(&two, "orders").await });
    until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
    site.server.kill();
    let error = one.inspect("orders").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    site.server.start_again().await.unwrap();
    assert!(guard.is_valid());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_stands_still_ends_leases_and_then_goes_on() {
    let site = Site::private().await;
    let locks = site.locks("").await;
    let guard = take(&locks, "orders").await;
    site.server.stop();
    until("a doubt", async || guard.state() != GuardState::Valid).await;
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "timeout"), "{error}");
    timeout(PATIENCE, guard.lost()).await.expect("no lease is treated as valid for longer than its ttl");
    site.server.cont();
    // What was asked for meanwhile is rolled back.
    timeout(PATIENCE, locks.backend().settle()).await.expect("the roll-back ends");
    take(&locks, "other").await.release().await.unwrap();
    take(&locks, "orders").await.release().await.unwrap();
}

#[tokio::test]
async fn waiters_that_do_not_listen_poll() {
    let site = Site::open().await;
    let (one, two) = (site.locks("&listen=off").await, site.locks("&listen=off").await);
    for _ in 0..3 {
        let guard = take(&one, "orders").await;
        let waiter = tokio::spawn({
            let two = two.clone();
            async move { take(&two, "orders").await }
        });
        until("a waiter", async || one.inspect("orders").await.unwrap().waiters == 1).await;
        guard.release().await.unwrap();
        timeout(Duration::from_secs(5), waiter)
            .await
            .expect("it asks again")
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let listeners = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'polylock\\_%'";
    assert_eq!(site.number(listeners).await, 0);
}

#[tokio::test]
async fn locks_that_are_dropped_leave_no_session() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    take(&locks, "orders").await.release().await.unwrap();
    drop(locks);
    until("its sessions end", async || {
        let sessions = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name LIKE 'polylock%'";
        site.number(sessions).await == 0
    })
    .await;
}

/// The requests in doubt have all places of the pool when the connections break.
#[tokio::test]
async fn a_held_lock_outlives_a_pause_of_the_server_in_which_all_connections_are_in_use() {
    let site = Site::private().await;
    let locks = site.locks("&ttl=10s").await;
    let guard = take(&locks, "held").await;
    let warm_up = async |number| take(&locks, &format!("warm {number}")).await.release().await.unwrap();
    join_all((0..24).map(warm_up)).await;
    site.server.stop();
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex(format!("other {number}")).acquire().await })
        })
        .collect();
    sleep(Duration::from_millis(2_300)).await;
    site.server.cont();
    for task in tasks {
        task.await.unwrap().unwrap().release().await.unwrap();
    }
    assert!(guard.is_valid());
}

/// Else the next call would wait for the answer to it.
#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_busy_connection() {
    let site = Site::open().await;
    let locks = site.locks("&pool=1&command_timeout=20s").await;
    take(&locks, "orders").await.release().await.unwrap();
    let mut user = site.client().await;
    let transaction = user.transaction().await.unwrap();
    // `inspect` reads this table, and who acquires a free lock does not.
    transaction.batch_execute("LOCK TABLE polylock.waiter").await.unwrap();
    timeout(Duration::from_millis(300), locks.inspect("orders")).await.unwrap_err();
    let guard = timeout(Duration::from_secs(10), take(&locks, "orders")).await.expect("it does not wait");
    guard.release().await.unwrap();
    transaction.rollback().await.unwrap();
}

/// Its session is paused until the lease has been extended over another one.
#[tokio::test]
async fn an_extension_that_is_executed_late_cuts_no_longer_one_short() {
    let site = Site::private().await;
    let locks = site.locks("&ttl=20s&command_timeout=1s&application_name=polylock-late").await;
    let guard = take(&locks, "orders").await;
    let session = next_session(&site, "polylock-late").await;
    signal(session, Signal::STOP);
    let error = guard.extend(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    let long = Duration::from_secs(600);
    let until = guard.extend(long).await.unwrap();
    signal(session, Signal::CONT);
    crate::site::until("it is executed, and its session ends", async || {
        site.number(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {session}")).await == 0
    })
    .await;
    assert_eq!(guard.valid_until(), until);
    let left = locks.inspect("orders").await.unwrap().holders[0].remaining.unwrap();
    assert!(left > long / 2, "{left:?}");
    guard.release().await.unwrap();
}

/// An observer is forgotten ten seconds after its end. Here that request is late, and comes after that of the next observer.
#[tokio::test]
#[ignore = "full: takes ten seconds"]
async fn the_end_of_an_observer_does_not_end_the_next_one() {
    let site = Site::private().await;
    let locks = site.locks("&ttl=60s&pool=2&command_timeout=20s&application_name=polylock-observer").await;
    let other = site.locks("&ttl=60s").await;
    let guard = take(&other, "orders").await;
    let (name, both) = (LockName::new("orders").unwrap(), [locks.inspect("orders"), locks.inspect("orders")]);
    let seen = join_all(both).await.remove(0).unwrap();
    timeout(Duration::from_millis(500), locks.backend().await_change(&name, &seen)).await.unwrap_err();
    sleep(Duration::from_millis(9_000)).await;
    let session = next_session(&site, "polylock-observer").await;
    signal(session, Signal::STOP);
    sleep(Duration::from_millis(2_000)).await;
    let observer = tokio::spawn(async move { locks.backend().await_change(&name, &seen).await });
    sleep(Duration::from_millis(500)).await;
    signal(session, Signal::CONT);
    sleep(Duration::from_millis(500)).await;
    guard.release().await.unwrap();
    let changed = timeout(Duration::from_secs(10), observer).await.expect("it is notified");
    assert!(!changed.unwrap().unwrap().is_held());
}

#[tokio::test]
#[ignore = "full: seconds"]
async fn an_observer_hears_of_changes_when_the_connection_that_listens_was_replaced() {
    let site = Site::private().await;
    let [locks, other] = [site.locks("&ttl=60s").await, site.locks("&ttl=60s&listen=off").await];
    let guard = take(&other, "orders").await;
    let name = LockName::new("orders").unwrap();
    let seen = locks.inspect("orders").await.unwrap();
    // It listens from the second one on.
    timeout(Duration::from_secs(1), locks.backend().await_change(&name, &seen)).await.unwrap_err();
    let observer = tokio::spawn(async move { locks.backend().await_change(&name, &seen).await });
    sleep(Duration::from_millis(500)).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'polylock\\_%'";
    assert_eq!(site.number(end).await, 1);
    sleep(Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let changed = timeout(Duration::from_secs(10), observer).await.expect("it is notified, or looks");
    assert!(!changed.unwrap().unwrap().is_held());
}

/// One for each connection of the pool, and one that listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: seconds of load"]
async fn where_the_server_has_no_room_for_one_more_session_no_lock_is_lost() {
    let hba = "host all all 127.0.0.1/32 trust";
    let site = Site::secured(PostgresServer::builder(), hba, "").await;
    site.client().await.batch_execute("ALTER ROLE app CONNECTION LIMIT 5").await.unwrap();
    let locks = connect(&format!("{}ttl=2s", site.url_of("app"))).await.unwrap();
    let guard = take(&locks, "held").await;
    let end = Instant::now() + Duration::from_secs(6);
    let tasks = (0..32).map(|number| {
        let locks = locks.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                take(&locks, &format!("other {number}")).await.release().await.unwrap();
            }
        })
    });
    join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
    assert!(guard.is_valid(), "{guard:?}");
    guard.release().await.unwrap();
}

/// A row that is locked for longer than a roll-back of a request without an answer takes.
#[tokio::test]
#[ignore = "full: a transaction is open for five seconds"]
async fn who_leaves_the_queue_while_a_transaction_has_the_row_is_removed_when_it_ends() {
    let site = Site::open().await;
    let (holder, other) = (site.locks("&ttl=60s").await, site.locks("&ttl=2s&command_timeout=500ms").await);
    let guard = take(&holder, "orders").await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { take(&other, "orders").await }
    });
    until("a waiter", async || holder.inspect("orders").await.unwrap().waiters == 1).await;
    let mut user = site.client().await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    waiter.abort();
    sleep(Duration::from_secs(5)).await;
    transaction.commit().await.unwrap();
    until("it has left", async || holder.inspect("orders").await.unwrap().waiters == 0).await;
    guard.release().await.unwrap();
}

/// The session that the next request gets.
async fn next_session(site: &Site, application: &str) -> i64 {
    let sql = format!(
        "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = '{application}' ORDER BY state_change DESC LIMIT 1"
    );
    site.number(&sql).await
}

fn signal(process: i64, signal: Signal) {
    kill_process(Pid::from_raw(process as i32).unwrap(), signal).unwrap();
}

/// Such an entry would pass for that of a waiter that polls, for seconds.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_closed_locks_do_not_queue_up_again() {
    let site = Site::open().await;
    let holder = site.locks("").await;
    for _ in 0..10 {
        let closed = site.locks("").await;
        let guard = take(&holder, "orders").await;
        let waiter = tokio::spawn({
            let mutex = closed.mutex("orders");
            async move { mutex.acquire().await }
        });
        until("a waiter", async || holder.inspect("orders").await.unwrap().waiters == 1).await;
        closed.close().await.unwrap();
        let ended = timeout(PATIENCE, waiter).await.expect("what is closed ends").unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
        let polls = "SELECT count(*) FROM polylock.waiter WHERE inbox IS NULL";
        assert_eq!(site.client().await.query_one(polls, &[]).await.unwrap().get::<_, i64>(0), 0);
        guard.release().await.unwrap();
    }
}
