//! A primary with a standby: failovers, planned or not, and clients that know both servers.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use lock_core::{ErrorKind, Guard, GuardState, Locks, Token};
use lock_postgres::Fence;
use lock_testkit::{
    PATIENCE, PostgresPair, PostgresServer, come, give_back, hand_over, is_renewed, queue_up, soon, take,
    until,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::site::{Site, client, connect};

async fn pair() -> PostgresPair {
    let options = PostgresServer::builder().config("max_connections", "300");
    PostgresPair::start_with(options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A client that knows both servers.
async fn locks(pair: &PostgresPair, options: &str) -> Locks {
    connect(&format!("{}?{options}", pair.url())).await.unwrap_or_else(|error| panic!("{error}"))
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
    give_back(take(&locks, "orders").await).await;

    // Time: none of them answers, whatever the timeout.
    let error = connect(&format!("postgres://postgres@{hosts}/x?connect_timeout=500ms")).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, "timeout"), "{error}");
}

/// Those that were granted in the moment before the primary died are the interesting ones.
#[tokio::test]
#[ignore = "full: a failover"]
async fn a_synchronous_failover_loses_no_grant() {
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let (one, two) = (locks(&pair, "ttl=20s&pool=8").await, locks(&pair, "ttl=20s&pool=8").await);
    let (granted, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let takers = (0..8).map(|taker| {
        let (one, granted, is_over) = (one.clone(), Arc::clone(&granted), Arc::clone(&is_over));
        tokio::spawn(async move {
            for number in 0.. {
                let taken = one.mutex(format!("{taker}/{number}")).try_acquire().await;
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                granted.lock().await.extend(taken.ok().flatten());
            }
        })
    });
    let takers: Vec<_> = takers.collect();
    until("grants", async || granted.lock().await.len() > 40).await;
    pair.servers()[0].kill();
    is_over.store(true, Ordering::SeqCst);
    pair.servers()[1].promote().await.unwrap();
    join_all(takers.into_iter().map(come)).await;
    let granted: Vec<Guard> = std::mem::take(&mut *granted.lock().await);
    join_all(granted.iter().map(async |guard| {
        let state = guard.verify().await.unwrap();
        assert!(!matches!(state, GuardState::Lost(_)), "{guard:?}: {state:?}");
    }))
    .await;
    // On the new primary.
    join_all(granted.iter().map(is_renewed)).await;
    for guard in granted {
        assert!(two.mutex(guard.name().as_str()).try_acquire().await.unwrap().is_none(), "{guard:?}");
        give_back(guard).await;
    }
}

/// A name may lead to it while it is promoted.
#[tokio::test]
#[ignore = "full: a switchover"]
async fn a_standby_is_not_asked_whether_a_lock_is_held() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let locks = connect(&format!("{}?ttl=120s", primary.url())).await.unwrap();
    let guard = take(&locks, "orders").await;
    pair.catch_up().await.unwrap();
    primary.shut_down().await.unwrap();
    standby.promote().await.unwrap();
    // The row is gone on the new primary, and the standby does not know it yet, or knows it already.
    primary.follow(standby).await.unwrap();
    until("it answers as a standby", async || {
        guard.verify().await.is_err_and(|error| error.code() == "replica")
    })
    .await;
    assert!(guard.is_valid());
}

#[tokio::test]
#[ignore = "full: a primary with a standby"]
async fn a_synchronous_standby_that_stands_still_lets_nothing_be_confirmed() {
    let pair = PostgresPair::start_synchronous().await.unwrap_or_else(|error| panic!("{error}"));
    let locks = locks(&pair, "ttl=6s").await;
    let guard = take(&locks, "orders").await;
    pair.servers()[1].stop();
    // It says that the lock is busy, or that the server does not answer.
    assert!(!matches!(locks.mutex("other").try_acquire().await, Ok(Some(_))));
    // A renewal that is not confirmed does not count.
    soon(guard.lost()).await;
    pair.servers()[1].cont();
    // What was asked for meanwhile is rolled back.
    soon(locks.backend().settle()).await;
    give_back(take(&locks, "other").await).await;
    give_back(take(&locks, "orders").await).await;
}

#[tokio::test]
#[ignore = "full: a switchover with 40 clients"]
async fn a_switchover_serves_forty_waiters() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let options = "ttl=60s&pool=1&connect_timeout=20s&command_timeout=20s";
    let holder = locks(&pair, options).await;
    let guard = take(&holder, "orders").await;
    let is_held = Arc::new(AtomicBool::new(false));
    let clients = join_all((0..40).map(|_| locks(&pair, options))).await;
    let waiters = clients.into_iter().map(|client| {
        let is_held = Arc::clone(&is_held);
        tokio::spawn(async move {
            let guard = client.mutex("orders").acquire().await.unwrap();
            assert!(!is_held.swap(true, Ordering::SeqCst), "two hold it");
            tokio::task::yield_now().await;
            assert!(guard.is_valid());
            is_held.store(false, Ordering::SeqCst);
            let token = guard.token();
            give_back(guard).await;
            token
        })
    });
    let waiters: Vec<_> = waiters.collect();
    until("40 waiters", async || holder.inspect("orders").await.unwrap().waiters == 40).await;

    primary.shut_down().await.unwrap();
    standby.promote().await.unwrap();
    primary.follow(standby).await.unwrap();
    assert!(guard.is_valid());
    let first = guard.token();
    give_back(guard).await;
    let served = timeout(4 * PATIENCE, join_all(waiters)).await.expect("all of them");
    let tokens: BTreeSet<Token> = served.into_iter().map(|token| token.unwrap()).collect();
    assert!(tokens.len() == 40 && tokens.first() > Some(&first), "{tokens:?} after {first}");
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn a_primary_that_stands_still_keeps_nobody_from_its_successor() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let one = locks(&pair, "ttl=20s").await;
    let guard = take(&one, "orders").await;
    // All connections of the pool are open.
    join_all((0..24).map(async |number| drop(take(&one, &format!("warm {number}")).await))).await;
    pair.catch_up().await.unwrap();
    primary.stop();
    standby.promote().await.unwrap();
    let two = locks(&pair, "ttl=20s").await;
    assert!(two.mutex("orders").try_acquire().await.unwrap().is_none());
    is_renewed(&guard).await;
    give_back(guard).await;
    give_back(take(&two, "orders").await).await;
}

/// As an operator does before a switchover: sessions of the old primary go on, and can write no more.
#[tokio::test]
#[ignore = "full: a failover"]
async fn a_primary_that_became_read_only_is_left_for_its_successor() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    let (one, two) = (locks(&pair, "ttl=20s").await, locks(&pair, "ttl=20s").await);
    let guard = take(&one, "orders").await;
    primary.set("default_transaction_read_only", "on").await.unwrap();
    pair.catch_up().await.unwrap();
    standby.promote().await.unwrap();
    is_renewed(&guard).await;
    let waiter = queue_up(&two, "orders").await;
    let listeners = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock\\_%'";
    until("the waiter listens there", async || standby.sql(&[listeners]).await.unwrap() != "0").await;
    give_back(hand_over(guard, waiter).await).await;
}

#[tokio::test]
#[ignore = "full: a failover"]
async fn two_primaries_grant_a_lock_twice_and_each_fences_its_own_data() {
    let pair = pair().await;
    let [primary, standby] = pair.servers();
    // It sees the old primary alone.
    let one = connect(&format!("{}?ttl=60s", primary.url())).await.unwrap();
    pair.catch_up().await.unwrap();
    standby.promote().await.unwrap();
    let two = connect(&format!("{}?ttl=60s", standby.url())).await.unwrap();
    let (old, new) = (take(&one, "account/7").await, take(&two, "account/7").await);
    assert!(old.is_valid() && new.is_valid(), "two valid guards, as documented");
    for (guard, server, works) in
        [(&old, primary, true), (&new, standby, true), (&new, primary, false), (&old, standby, false)]
    {
        let mut client = client(&server.connect_string()).await;
        let transaction = client.transaction().await.unwrap();
        let fenced = guard.fence(&transaction).await;
        assert_eq!(fenced.as_ref().err().map(|error| error.kind()), (!works).then_some(ErrorKind::Lost));
    }
}
