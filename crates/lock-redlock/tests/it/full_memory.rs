//! Masters whose memory is full refuse new locks. They take none away, and those that they have are released and handed over.

use std::time::Duration;

use lock_core::{ErrorKind, Guard, Locks, Token};
use lock_testkit::{RedisFive, RedisServer, acquiring, come, give_back, until};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::common::connect;

const TTL: Duration = Duration::from_secs(1);

async fn masters() -> RedisFive {
    let masters = RedisServer::builder().maxmemory_policy("noeviction").start_n(3).await.unwrap();
    masters.have_been_used().await.unwrap();
    masters
}

async fn client(masters: &RedisFive) -> Locks {
    let url = format!("{}?ttl=1s&longest_ttl=10s&connect_timeout=10s", masters.url());
    connect(&url).await.unwrap()
}

async fn limit(masters: &RedisFive, bytes: &str) {
    for master in masters.servers() {
        master.call(&["CONFIG", "SET", "maxmemory", bytes]).await;
    }
}

/// Fills the memory of the masters, and checks that they refuse a new lock.
async fn fill(masters: &RedisFive, locks: &Locks) {
    limit(masters, "1").await;
    let error = locks.mutex("new").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
}

/// A waiter that is in the queue of each master.
async fn waits(masters: &RedisFive, locks: &Locks) -> JoinHandle<Guard> {
    let waiter = acquiring(locks.mutex("a"));
    for master in masters.servers() {
        let is_queued = async || master.call(&["ZCARD", "polylock:line:{lock:a}"]).await.int() == Some(1);
        until("no waiter in the queue", is_queued).await;
    }
    waiter
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_and_released() {
    let masters = masters().await;
    let locks = client(&masters).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    fill(&masters, &locks).await;
    sleep(TTL * 5 / 2).await;
    guard.extend(TTL).await.unwrap();
    guard.raise_token(Token::new(guard.token().get() + 160)).await.unwrap();
    assert!(guard.is_valid());
    give_back(guard).await;
    for master in masters.servers() {
        assert!(!master.has_key("lock:a").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_goes_to_the_next_waiter() {
    let masters = masters().await;
    let (holder, next) = (client(&masters).await, client(&masters).await);
    // After a moment, the messages alone acquire the lock. After the grace period the waiter has to ask, too; after six seconds
    // the masters would have forgotten it.
    for pause in [Duration::ZERO, TTL * 3 / 2, Duration::from_secs(6)] {
        limit(&masters, "0").await;
        let guard = holder.mutex("a").acquire().await.unwrap();
        let waiter = waits(&masters, &next).await;
        fill(&masters, &holder).await;
        sleep(pause).await;
        assert!(!waiter.is_finished() && guard.is_valid(), "{pause:?}");
        let token = guard.token();
        give_back(guard).await;
        let guard = come(waiter).await;
        assert!(guard.token() > token, "{pause:?}");
        guard.extend(TTL).await.unwrap();
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_lock_is_waited_for() {
    let masters = masters().await;
    let (holder, next) = (client(&masters).await, client(&masters).await);
    let guard = holder.mutex("a").acquire().await.unwrap();
    fill(&masters, &holder).await;
    let waiter = waits(&masters, &next).await;
    give_back(guard).await;
    give_back(come(waiter).await).await;
}
