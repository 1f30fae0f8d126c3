//! Masters whose memory is full refuse new locks. They take none away, and those that they have are released and handed over.

use std::time::Duration;

use lock_core::{ErrorKind, Locks, Token};
use lock_testkit::{RedisFive, RedisServer, acquiring, come, give_back, is_renewed, take};
use tokio::time::sleep;

use crate::common::{client, is_free, lined_up, run};

const OPTIONS: &str = "ttl=5s&longest_ttl=10s&connect_timeout=10s";

async fn masters() -> (RedisFive, Locks) {
    let masters = RedisServer::builder().maxmemory_policy("noeviction").start_n(3).await.unwrap();
    masters.have_been_used().await.unwrap();
    let locks = client(&masters, OPTIONS).await;
    (masters, locks)
}

async fn limit(masters: &RedisFive, bytes: &str) {
    for master in masters.servers() {
        run(master, &format!("CONFIG SET maxmemory {bytes}")).await;
    }
}

/// Fills the memory of the masters, and checks that they refuse a new lock.
async fn fill(masters: &RedisFive, locks: &Locks) {
    limit(masters, "1").await;
    let error = locks.mutex("new").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_and_released() {
    let (masters, locks) = masters().await;
    let guard = take(&locks, "a").await;
    fill(&masters, &locks).await;
    is_renewed(&guard).await;
    guard.extend(Duration::from_secs(5)).await.unwrap();
    guard.raise_token(Token::new(guard.token().get() + 160)).await.unwrap();
    give_back(guard).await;
    is_free(&masters).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lock_goes_to_the_next_waiter() {
    let (masters, holder) = masters().await;
    let next = client(&masters, OPTIONS).await;
    // At once, the messages alone acquire the lock. After the grace period of a second the waiter has to ask, too; after six seconds
    // the masters would have forgotten it. The last one comes when the memory is full.
    for seconds in [Some(0), Some(2), Some(6), None] {
        limit(&masters, "0").await;
        let guard = take(&holder, "a").await;
        if seconds.is_none() {
            fill(&masters, &holder).await;
        }
        let waiter = acquiring(next.mutex("a"));
        lined_up(&masters, "a", 1).await;
        if let Some(seconds) = seconds {
            fill(&masters, &holder).await;
            // Time: how long the masters remember the waiter is the subject.
            sleep(Duration::from_secs(seconds)).await;
        }
        assert!(!waiter.is_finished() && guard.is_valid(), "{seconds:?}");
        let token = guard.token();
        give_back(guard).await;
        let guard = come(waiter).await;
        assert!(guard.token() > token, "{seconds:?}");
        guard.extend(Duration::from_secs(5)).await.unwrap();
        give_back(guard).await;
    }
}
