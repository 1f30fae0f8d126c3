//! Connections that break or are given up, and how many there are.

use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Outcome};
use lock_postgres::Fence;
use lock_testkit::postgres::PostgresServer;
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{acquiring, come, give_back, hand_over, queue_up, take, until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::site::{LISTENERS, SESSIONS, Site, connect};

#[tokio::test]
async fn locks_that_are_dropped_leave_no_session() {
    let site = Site::open().await;
    let locks = site.locks("").await;
    give_back(take(&locks, "orders").await).await;
    drop(locks);
    until("its sessions end", async || site.number(SESSIONS).await == 0).await;
}

/// The requests in doubt have all places of the pool when the connections break.
#[tokio::test]
async fn a_held_lock_outlives_a_pause_of_the_server_in_which_all_connections_are_in_use() {
    let site = Site::private().await;
    let locks = site.locks("&ttl=10s").await;
    let guard = take(&locks, "held").await;
    join_all((0..24).map(async |number| give_back(take(&locks, &format!("warm {number}")).await).await))
        .await;
    site.server.stop();
    let tasks: Vec<_> = (0..4).map(|number| acquiring(locks.mutex(format!("other {number}")))).collect();
    // Time: longer than a call waits for its answer, and shorter than the lease.
    sleep(Duration::from_millis(2_300)).await;
    site.server.cont();
    for task in tasks {
        give_back(come(task).await).await;
    }
    assert!(guard.is_valid());
}

/// A router has forgotten the connections. One of them has the call of a waiter, another one the roll-back of a waiter that left, and the
/// one that listens its heartbeat.
#[tokio::test]
#[ignore = "full: such a call has a quarter of its time"]
async fn silent_connections_are_left_once_a_later_one_is_answered() {
    let site = Site::open().await;
    let proxy = FaultProxy::start(site.server.addr(), Protocol::Postgres).unwrap();
    let holder = site.locks("&ttl=60s").await;
    // Time: a call is given up after a third of the patience of the test.
    let options = "ttl=60s&pool=3&command_timeout=10s";
    let url = format!("postgres://postgres@{}/{}?{options}", proxy.addr(), site.database);
    let locks = connect(&url).await.unwrap();
    let (one, two) = (take(&holder, "one").await, take(&holder, "two").await);
    let (waits, leaves) = (queue_up(&locks, "one").await, queue_up(&locks, "two").await);
    proxy.forget();
    // Time: each waiter asks once more within two seconds, and the listener within five.
    sleep(Duration::from_secs(6)).await;
    leaves.abort();
    give_back(take(&locks, "three").await).await;

    // The server has not noticed that the session before is lost.
    until("it listens over a later one", async || site.number(LISTENERS).await == 3).await;
    until("it has left", async || holder.inspect("two").await.unwrap().waiters == 0).await;
    give_back(hand_over(one, waits).await).await;
    give_back(two).await;
}

/// Else the next call would wait for the answer to it.
#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_busy_connection() {
    let site = Site::open().await;
    let locks = site.locks("&pool=1&ttl=60s&command_timeout=40s").await;
    give_back(take(&locks, "orders").await).await;
    let mut user = site.client().await;
    let transaction = user.transaction().await.unwrap();
    // `inspect` reads this table, and who acquires a free lock does not.
    transaction.batch_execute("LOCK TABLE polylock.waiter").await.unwrap();
    // Time: until it waits for the table.
    timeout(Duration::from_millis(300), locks.inspect("orders")).await.unwrap_err();
    give_back(take(&locks, "orders").await).await;
    transaction.rollback().await.unwrap();
}

/// Its session is paused until the lease has been extended over another one.
#[tokio::test]
async fn an_extension_that_is_executed_late_cuts_no_longer_one_short() {
    let site = Site::private().await;
    // Time: a call is given up soon.
    let locks = site.locks("&ttl=20s&command_timeout=1s&application_name=polylock-late").await;
    let guard = take(&locks, "orders").await;
    let next = "SELECT pid::bigint FROM pg_stat_activity WHERE application_name = 'polylock-late' ORDER BY state_change DESC LIMIT 1";
    let session = site.number(next).await;
    let signal = |signal| kill_process(Pid::from_raw(session as i32).unwrap(), signal).unwrap();
    signal(Signal::STOP);
    let error = guard.extend(Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    let long = Duration::from_secs(600);
    let valid_until = guard.extend(long).await.unwrap();
    signal(Signal::CONT);
    let is_there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {session}");
    until("it is executed, and its session ends", async || site.number(&is_there).await == 0).await;
    assert_eq!(guard.valid_until(), valid_until);
    let left = locks.inspect("orders").await.unwrap().holders[0].remaining.unwrap();
    assert!(left > long / 2, "{left:?}");
    give_back(guard).await;
}

/// One that listens, and one for each connection of the pool, for some, or for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: seconds of load"]
async fn where_the_server_has_no_room_for_one_more_session_no_lock_is_lost() {
    let hba = "host all all 127.0.0.1/32 trust";
    let site = Site::secured(PostgresServer::builder(), hba, "").await;
    for sessions in [5, 3, 2] {
        site.execute(&format!("ALTER ROLE app CONNECTION LIMIT {sessions}")).await;
        let locks = connect(&format!("{}ttl=5s", site.url_of("app"))).await.unwrap();
        let guard = take(&locks, "held").await;
        // Time: for two leases.
        let end = Instant::now() + Duration::from_secs(10);
        let tasks = (0..32).map(|number| {
            let locks = locks.clone();
            tokio::spawn(async move {
                while Instant::now() < end {
                    give_back(take(&locks, &format!("other {number}")).await).await;
                }
            })
        });
        join_all(tasks).await.into_iter().for_each(|ended| ended.unwrap());
        assert!(guard.is_valid(), "{sessions}: {guard:?}");
        give_back(guard).await;
        drop(locks);
        until("its sessions end", async || site.number(SESSIONS).await == 0).await;
    }
}

/// Else it would ask again, up to two seconds later.
#[tokio::test]
async fn a_waiter_is_notified_over_the_next_connection_when_one_ends() {
    let site = Site::open().await;
    let (locks, other) = (site.locks("&ttl=60s").await, site.locks("&ttl=60s").await);
    let guard = take(&locks, "orders").await;
    let waiter = queue_up(&other, "orders").await;
    let ends_once = "ALTER FUNCTION polylock.tell RENAME TO tells; CREATE SEQUENCE polylock.tries; \
        CREATE TABLE polylock.notified (names text[]); \
        CREATE FUNCTION polylock.tell(p_names text[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN \
          IF nextval('polylock.tries') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; \
          INSERT INTO polylock.notified VALUES (p_names); PERFORM polylock.tells(p_names); END $$";
    site.execute(ends_once).await;
    give_back(hand_over(guard, waiter).await).await;
    let notified = "SELECT count(*) FROM polylock.notified WHERE names = '{orders}'";
    until("it is notified", async || site.number(notified).await == 1).await;
}

/// Every role may keep the lock that the commit of a notification needs, for the whole server.
#[tokio::test]
#[ignore = "full: twice the time of a lease"]
async fn where_nobody_can_be_notified_no_lock_is_lost() {
    let site = Site::private().await;
    // Time: longer leases than the test lasts are those of others.
    let (locks, other) = (site.locks("&ttl=6s&sync=local").await, site.locks("&ttl=60s&sync=local").await);
    let held = take(&locks, "held").await;
    let eve = site.client_of(&site.role("eve").await).await;
    site.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await;
    site.execute("SELECT pg_reload_conf()").await;
    let stalls = tokio::spawn(async move {
        for number in 0.. {
            let sql = format!("CREATE TEMP TABLE t{number} (); NOTIFY somebody");
            eve.batch_execute(&sql).await.unwrap();
        }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("its commit waits for a standby", async || site.number(waits).await == 1).await;
    let handed_over = join_all((0..12).map(async |number| {
        let name = format!("other {number}");
        let guard = take(&locks, &name).await;
        let waiter = queue_up(&other, &name).await;
        hand_over(guard, waiter).await
    }));
    let handed_over = handed_over.await;
    // A process that starts meanwhile.
    let late = take(&site.locks("&ttl=6s&sync=local").await, "late").await;
    // Time: two leases.
    sleep(Duration::from_secs(12)).await;
    assert!(held.is_valid() && late.is_valid(), "{held:?}, {late:?}");
    stalls.abort();
    join_all(handed_over.into_iter().chain([held, late]).map(give_back)).await;
}

/// A row that is locked for longer than a roll-back of a request without an answer takes.
#[tokio::test]
#[ignore = "full: a transaction is open for five seconds"]
async fn who_leaves_the_queue_while_a_transaction_has_the_row_is_removed_when_it_ends() {
    let site = Site::open().await;
    // Time: the roll-back goes on for as long as its ttl.
    let (holder, other) = (site.locks("&ttl=60s").await, site.locks("&ttl=2s&command_timeout=500ms").await);
    let guard = take(&holder, "orders").await;
    let waiter = queue_up(&other, "orders").await;
    let mut user = site.client().await;
    let transaction = user.transaction().await.unwrap();
    guard.fence(&transaction).await.unwrap();
    waiter.abort();
    // Time: longer than that.
    sleep(Duration::from_secs(5)).await;
    transaction.commit().await.unwrap();
    until("it has left", async || holder.inspect("orders").await.unwrap().waiters == 0).await;
    give_back(guard).await;
}

/// Such an entry would pass for that of a waiter that polls, for seconds.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_closed_locks_do_not_queue_up_again() {
    let site = Site::open().await;
    let holder = site.locks("&ttl=60s").await;
    for _ in 0..10 {
        let closed = site.locks("").await;
        let (guard, mutex) = (take(&holder, "orders").await, closed.mutex("orders"));
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        until("a waiter", async || holder.inspect("orders").await.unwrap().waiters == 1).await;
        closed.close().await.unwrap();
        assert_eq!(come(waiter).await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(site.number("SELECT count(*) FROM polylock.waiter WHERE inbox IS NULL").await, 0);
        give_back(guard).await;
    }
}

/// Its tasks have a connection, or are next in line for one, and go on only when it has computed.
#[test]
#[ignore = "full: a thread computes for some seconds"]
fn a_thread_that_computes_keeps_no_connection_from_renewals() {
    // Time: the lease would have ended twice.
    const COMPUTES: Duration = Duration::from_secs(10);
    let connections = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (locks, guard, _site) = connections.block_on(async {
        let site = Site::private().await;
        let locks = site.locks("&ttl=5s").await;
        let guard = take(&locks, "held").await;
        (locks, guard, site)
    });
    let clients = Builder::new_current_thread().enable_all().build().unwrap();
    clients.block_on(async {
        for number in 0..16 {
            let mutex = locks.mutex(format!("other {number}"));
            drop(tokio::spawn(async move { mutex.acquire().await }));
        }
        tokio::task::yield_now().await;
        // Time: as above.
        thread::sleep(COMPUTES);
    });
    assert!(guard.is_valid());
    // Its tasks give back what they have.
    drop(clients);
    connections.block_on(give_back(guard));
}
