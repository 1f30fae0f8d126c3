//! Masters whose memory is full.

use lock_core::ErrorKind;
use lock_testkit::{RedisServer, acquiring, hand_over, take};

use crate::common::{client, lined_up, run};

/// A free lock is refused then. The queue of one that is held needs little.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_comes_when_the_memory_is_full_gets_the_lock() {
    let masters = RedisServer::builder().maxmemory_policy("noeviction").start_n(3).await.unwrap();
    masters.have_been_used().await.unwrap();
    let options = "ttl=60s&longest_ttl=60s&connect_timeout=10s";
    let (holder, next) = (client(&masters, options).await, client(&masters, options).await);
    let guard = take(&holder, "a").await;
    for master in masters.servers() {
        run(master, "CONFIG SET maxmemory 1").await;
    }
    let error = holder.mutex("new").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    let waiter = acquiring(next.mutex("a"));
    lined_up(&masters, "a", 1).await;
    let token = guard.token();
    assert!(hand_over(guard, waiter).await.token() > token);
}
