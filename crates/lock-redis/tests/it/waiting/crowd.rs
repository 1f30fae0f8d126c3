//! Many tasks at once, each with a lock of its own.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, Locks, Outcome};
use lock_testkit::{RedisServer, by_tier, crowd, give_back, take, until};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::common::{connect, nothing_is_left};

/// Of a crowd.
const PATIENCE: Duration = Duration::from_secs(120);

/// Two crowds at once would be one that is larger.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

fn tasks() -> usize {
    by_tier(20_000, 20_000, 100_000)
}

/// With the defaults, whose timeouts are far shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_grants_the_locks_of_a_crowd_at_a_few_commands_each() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (redis, tasks) = (RedisServer::start().await.unwrap(), tasks());
    let locks = connect(&redis.url()).await;
    let began = Instant::now();
    let (guards, error) = crowd(&locks, tasks).await;
    let took = began.elapsed();
    // On a busy host a few connections take too long.
    assert!(guards.len() * 100 >= tasks * 95, "{} of {tasks} in {took:?}: {error:?}", guards.len());
    let scripts = redis.calls_of("evalsha").await;
    let claims = redis.calls_of("set").await;
    // And what is held is renewed every ten seconds.
    let most = (2 + took.as_secs() / 10) * tasks as u64 + 1000;
    assert!(scripts + claims <= most, "{scripts} scripts and {claims} claims in {took:?}");

    // They are held, and released as fast.
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    assert!(valid * 100 >= tasks * 95, "{valid} of {tasks} are valid");
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(PATIENCE, join_all(released)).await.expect("all of them end");
    let failed: Vec<_> = released.into_iter().filter_map(|released| released.unwrap().err()).collect();
    assert!(failed.len() * 100 <= tasks * 5, "{} of {tasks}: {:?}", failed.len(), failed[0]);
    until("the last tokens alone are left", async || {
        redis.call(&["DBSIZE"]).await.int().unwrap() == tasks as i64
    })
    .await;
}

/// Its requests are not sent, and so nothing is to be taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_gives_up_costs_the_server_only_what_was_sent() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&format!("{}?command_timeout=20s", redis.url())).await;
    gives_up(&redis, &locks, tasks()).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_a_crowd_that_gives_up_costs_the_server_only_what_was_sent() {
    if RedisServer::lacks_tls() {
        return;
    }
    let certificates = Arc::new(lock_testkit::Certificates::new().unwrap());
    let redis = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
    let options = format!("connect_timeout=10s&command_timeout=20s&tls_ca={}", certificates.ca().display());
    let locks = connect(&format!("rediss://{}?{options}", redis.tls_addr())).await;
    gives_up(&redis, &locks, 10_000).await;
}

async fn gives_up(redis: &RedisServer, locks: &Locks, tasks: usize) {
    give_back(take(locks, "first").await).await;
    redis.call(&["CONFIG", "RESETSTAT"]).await;
    redis.stop();
    let (asked, giving_up) =
        (Arc::new(tokio::sync::Barrier::new(tasks + 1)), Arc::new(tokio::sync::Notify::new()));
    let given_up = (0..tasks).map(|task| {
        let mutex = locks.mutex(format!("lock/{task}"));
        let (asked, giving_up) = (Arc::clone(&asked), Arc::clone(&giving_up));
        tokio::spawn(async move {
            let mut acquired = std::pin::pin!(mutex.acquire());
            let told = giving_up.notified();
            assert!(futures_util::poll!(acquired.as_mut()).is_pending());
            asked.wait().await;
            tokio::select! {
                acquired = acquired => panic!("{acquired:?}"),
                () = told => {}
            }
        })
    });
    let given_up: Vec<_> = given_up.collect();
    timeout(PATIENCE, asked.wait()).await.expect("all of them ask");
    until("they give up", async || {
        giving_up.notify_waiters();
        given_up.iter().all(tokio::task::JoinHandle::is_finished)
    })
    .await;
    join_all(given_up).await.into_iter().for_each(Result::unwrap);
    redis.cont();
    give_back(take(locks, "next").await).await;
    nothing_is_left(redis).await;
    let scripts = redis.calls_of("evalsha").await;
    assert!(scripts <= 3000, "{scripts} scripts for {tasks} tasks that gave up");
}

/// However many wait for their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_noticed_by_a_crowd() {
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&redis.url()).await;
    give_back(take(&locks, "first").await).await;
    redis.stop();
    let acquired = (0..5000).map(|task| {
        let mutex = locks.mutex(format!("lock/{task}"));
        tokio::spawn(async move { mutex.acquire().await.map(drop) })
    });
    let acquired = timeout(PATIENCE, join_all(acquired)).await.expect("all of them end");
    let mut sent = 0;
    for acquired in acquired {
        let error = acquired.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        sent += usize::from(error.outcome() != Outcome::NotApplied);
    }
    assert!(sent <= 1500, "{sent}");
    redis.cont();
    give_back(take(&locks, "next").await).await;
}

/// The server has closed it while it was idle.
#[tokio::test]
async fn what_was_not_sent_over_a_closed_connection_is_sent_over_the_next() {
    let redis = RedisServer::start().await.unwrap();
    let (locks, holder) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let guard = take(&holder, "a").await;
    let closed = async || {
        redis.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        until("it is closed", async || {
            redis.text(&["CLIENT", "LIST", "TYPE", "normal"]).await.lines().count() == 1
        })
        .await;
    };
    locks.inspect("a").await.unwrap();
    closed().await;
    assert!(locks.break_lock("a").await.unwrap(), "it was held");
    guard.release().await.unwrap();
    closed().await;
    locks.doctor().await.unwrap();
    closed().await;
    redis.call(&["CONFIG", "RESETSTAT"]).await;
    let guard = locks.mutex("b").try_acquire().await.unwrap().expect("it is free");
    assert_eq!(redis.calls_of("evalsha").await, 1, "no roll-back");
    guard.release().await.unwrap();
}
