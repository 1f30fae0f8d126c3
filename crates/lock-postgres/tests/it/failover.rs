//! A primary with a standby: failovers, planned or not, and clients that know both servers.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Guard, GuardState, Locks};
use lock_postgres::Fence;
use lock_testkit::{PostgresPair, PostgresServer};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::site::{PATIENCE, Site, client, connect, take, until};

const ACCOUNT: &str =
    "CREATE TABLE account (id int PRIMARY KEY, cents int); INSERT INTO account VALUES (7, 100)";

async fn pair() -> PostgresPair {
    let options = PostgresServer::builder().config("max_connections", "300");
    PostgresPair::start_with(options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A client that knows both servers.
async fn locks(pair: &PostgresPair, options: &str) -> Locks {
    connect(&format!("{}?{options}", pair.url())).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Kills the primary, and promotes the standby.
async fn fail_over(pair: &PostgresPair) {
    let [primary, standby] = pair.servers();
    primary.kill();
    standby.promote().await.unwrap();
}

/// A waiter that is in the queue.
async fn waiter(locks: &Locks, name: &'static str) -> JoinHandle<Guard> {
    let before = locks.inspect(name).await.unwrap().waiters;
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move { take(&locks, name).await }
    });
    until("a waiter", async || locks.inspect(name).await.unwrap().waiters > before).await;
    waiter
}

/// Whether a transaction of this server can be fenced.
async fn can_fence(guard: &Guard, server: &PostgresServer) -> bool {
    let mut client = client(&server.connect_string()).await;
    let transaction = client.transaction().await.unwrap();
    match guard.fence(&transaction).await {
        Ok(()) => {
            transaction.execute("UPDATE account SET cents = cents - 5", &[]).await.unwrap();
            transaction.commit().await.unwrap();
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            false
        }
    }
}

#[tokio::test]
async fn servers_that_are_silent_or_down_are_passed_over() {
    let site = Site::open().await;
    // The kernel accepts connections, and nobody serves them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let down = TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = [&silent, &down].map(|server| server.local_addr().unwrap().to_string()).join(",");
    drop(down);
    let url = format!("postgres://postgres@{hosts},{}/{}", site.server.addr(), site.database);
    let locks = connect(&url).await.unwrap_or_else(|error| panic!("{error}"));
    take(&locks, "orders").await.release().await.unwrap();

    let error = connect(&format!("postgres://postgres@{hosts}/x?connect_timeout=500ms")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "timeout"), "{error}");
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn an_asynchronous_failover_keeps_what_was_replicated() {
    let pair = pair().await;
    let (one, two) = (locks(&pair, "ttl=4s").await, locks(&pair, "ttl=4s").await);
    let guard = take(&one, "orders").await;
    let waiter = waiter(&two, "orders").await;
    pair.catch_up().await.unwrap();
    fail_over(&pair).await;
    sleep(Duration::from_secs(5)).await;
    assert!(guard.is_valid(), "it is renewed on the new primary");
    assert!(!waiter.is_finished());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn an_asynchronous_failover_may_lose_the_last_grants_and_fences_their_data() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let (one, two) = (locks(&pair, "ttl=30s").await, locks(&pair, "ttl=30s").await);
    primary.sql(&[ACCOUNT]).await.unwrap();
    pair.detach().await.unwrap();
    let lost = take(&one, "account/7").await;
    fail_over(&pair).await;
    let next = take(&two, "account/7").await;
    assert!(lost.is_valid() && next.is_valid(), "two valid guards, as documented");
    assert!(next.token() > lost.token());
    assert!(!can_fence(&lost, standby).await);
    assert!(can_fence(&next, standby).await);
    assert_eq!(lost.verify().await.unwrap(), GuardState::Lost(lock_core::LossReason::Removed));
    next.release().await.unwrap();
}

/// Those that were granted in the moment before the primary died are the interesting ones.
#[tokio::test]
#[ignore = "full: a failover"]
async fn a_synchronous_failover_loses_no_grant() {
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let (one, two) = (locks(&pair, "ttl=6s&pool=8").await, locks(&pair, "ttl=6s&pool=8").await);
    let granted = Arc::new(Mutex::new(Vec::new()));
    let is_over = Arc::new(AtomicBool::new(false));
    let takers = (0..8).map(|taker| {
        let (one, granted, is_over) = (one.clone(), Arc::clone(&granted), Arc::clone(&is_over));
        tokio::spawn(async move {
            for number in 0.. {
                let name = format!("{taker}/{number}");
                let taken = one.mutex(&name).try_acquire().await;
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                granted.lock().await.extend(taken.ok().flatten().map(|guard| (name, guard)));
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    until("grants", async || granted.lock().await.len() > 40).await;
    pair.servers()[0].kill();
    is_over.store(true, Ordering::SeqCst);
    pair.servers()[1].promote().await.unwrap();
    for taker in takers {
        timeout(PATIENCE, taker).await.expect("it ends").unwrap();
    }
    let granted = std::mem::take(&mut *granted.lock().await);
    let verified = join_all(granted.iter().map(async |(name, guard)| {
        let state = guard.verify().await.unwrap();
        assert!(!matches!(state, GuardState::Lost(_)), "{name}: {state:?}");
    }));
    verified.await;
    sleep(Duration::from_secs(7)).await;
    for (name, guard) in granted {
        assert!(guard.is_valid(), "{name} is renewed on the new primary");
        assert!(two.mutex(&name).try_acquire().await.unwrap().is_none(), "{name}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_synchronous_standby_that_stands_still_lets_nothing_be_confirmed() {
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let locks = locks(&pair, "ttl=4s").await;
    let guard = take(&locks, "orders").await;
    pair.servers()[1].stop();
    // It says that the lock is busy, or that the server does not answer.
    assert!(!matches!(locks.mutex("other").try_acquire().await, Ok(Some(_))));
    timeout(PATIENCE, guard.lost()).await.expect("a renewal that is not confirmed does not count");
    pair.servers()[1].cont();
    // What was asked for meanwhile is rolled back.
    timeout(PATIENCE, locks.backend().settle()).await.expect("the roll-back ends");
    take(&locks, "other").await.release().await.unwrap();
    take(&locks, "orders").await.release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: a switchover with 40 clients"]
async fn a_switchover_serves_forty_waiters() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let holder = locks(&pair, "ttl=30s").await;
    let guard = take(&holder, "orders").await;
    let is_held = Arc::new(AtomicBool::new(false));
    let clients =
        join_all((0..40).map(|_| locks(&pair, "ttl=30s&pool=1&connect_timeout=10s&command_timeout=10s")))
            .await;
    let waiters: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let is_held = Arc::clone(&is_held);
            tokio::spawn(async move {
                let guard = take(&client, "orders").await;
                assert!(!is_held.swap(true, Ordering::SeqCst), "two hold it");
                sleep(Duration::from_millis(5)).await;
                assert!(guard.is_valid());
                is_held.store(false, Ordering::SeqCst);
                let token = guard.token();
                guard.release().await.unwrap();
                token
            })
        })
        .collect();
    until("40 waiters", async || holder.inspect("orders").await.unwrap().waiters == 40).await;

    primary.shut_down().await.unwrap();
    standby.promote().await.unwrap();
    primary.follow(standby).await.unwrap();
    assert!(guard.is_valid());
    let mut tokens = vec![guard.token()];
    guard.release().await.unwrap();
    for waiter in waiters {
        tokens.push(timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap());
    }
    let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
    assert_eq!((distinct.len(), distinct.first()), (41, tokens.first().as_ref()));
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn a_primary_that_stands_still_keeps_nobody_from_its_successor() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let one = locks(&pair, "ttl=8s").await;
    let guard = take(&one, "orders").await;
    // All connections of the pool are open.
    join_all((0..24).map(async |number| drop(take(&one, &format!("warm {number}")).await))).await;
    pair.catch_up().await.unwrap();
    primary.stop();
    standby.promote().await.unwrap();
    let two = locks(&pair, "ttl=8s").await;
    assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
    sleep(Duration::from_secs(9)).await;
    assert!(guard.is_valid(), "it is renewed on the new primary");
    guard.release().await.unwrap();
    take(&two, "orders").await.release().await.unwrap();
}

/// As an operator does before a switchover: sessions of the old primary go on, and can write no more.
#[tokio::test]
#[ignore = "full: a failover"]
async fn a_primary_that_became_read_only_is_left_for_its_successor() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let (one, two) = (locks(&pair, "ttl=6s").await, locks(&pair, "ttl=6s").await);
    let guard = take(&one, "orders").await;
    primary.set("default_transaction_read_only", "on").await.unwrap();
    pair.catch_up().await.unwrap();
    standby.promote().await.unwrap();
    sleep(Duration::from_secs(7)).await;
    assert!(guard.is_valid(), "it is renewed on the new primary");
    let waiter = waiter(&two, "orders").await;
    let listeners = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock\\_%'";
    until("the waiter listens there", async || standby.sql(&[listeners]).await.unwrap() != "0").await;
    guard.release().await.unwrap();
    timeout(PATIENCE, waiter).await.expect("the waiter goes on").unwrap().release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn two_primaries_grant_a_lock_twice_and_each_fences_its_own_data() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    // It sees the old primary alone.
    let one = connect(&format!("{}?ttl=30s", primary.url())).await.unwrap();
    primary.sql(&[ACCOUNT]).await.unwrap();
    pair.catch_up().await.unwrap();
    standby.promote().await.unwrap();
    let two = connect(&format!("{}?ttl=30s", standby.url())).await.unwrap();
    let (old, new) = (take(&one, "account/7").await, take(&two, "account/7").await);
    assert!(old.is_valid() && new.is_valid(), "two valid guards, as documented");
    assert!(can_fence(&old, primary).await && can_fence(&new, standby).await);
    assert!(!can_fence(&new, primary).await && !can_fence(&old, standby).await);
}
