//! The bugs of other lock libraries, by the numbers of docs/BUGS.md. What other tests prove is not repeated here.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{ErrorKind, GuardState, LockOptions, Outcome, Released};
use lock_testkit::proxy::Direction;
use lock_testkit::{acquiring, cancel_after, come, give_back, soon, take, until};

use crate::common::{KEY, Link, holder};

/// Whether the release finds a renewal on its way, or not.
#[tokio::test(flavor = "multi_thread")]
async fn b01_no_renewal_outlives_the_release() {
    for on_its_way in [true, false] {
        let link = Link::with("ttl=5s&command_timeout=20s").await;
        let guard = take(&link.locks, "a").await;
        link.proxy.hold(Direction::ToServer);
        if on_its_way {
            until("a renewal is sent", async || link.proxy.queued(Direction::ToServer) > 0).await;
        }
        let mut releasing = pin!(guard.release());
        assert!(releasing.as_mut().now_or_never().is_none());
        link.proxy.deliver();
        assert_eq!(soon(releasing).await.unwrap(), Released::Released);
        link.redis.call(&["SET", KEY, "theirs", "PX", "10000"]).await;
        link.proxy.reset_counters();
        // Time: that nothing comes has no event. It would have been renewed.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(link.proxy.requests(), 0, "released, and still renewed");
        assert_eq!(holder(&link.redis).await, "theirs");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b03_a_release_does_not_race_an_extension() {
    let link = Link::with("ttl=60s&command_timeout=20s").await;
    let guard = take(&link.locks, "a").await;
    link.proxy.hold(Direction::ToServer);
    assert!(cancel_after(1, guard.extend(Duration::from_secs(60))).await.is_none());
    until("an extension is sent", async || link.proxy.queued(Direction::ToServer) != 0).await;
    let extension = link.proxy.queued(Direction::ToServer);
    let mut releasing = pin!(guard.release());
    assert!(releasing.as_mut().now_or_never().is_none());
    // Time: that nothing is sent has no event.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(link.proxy.queued(Direction::ToServer), extension, "released beside an extension");
    link.proxy.deliver();
    assert_eq!(soon(releasing).await.unwrap(), Released::Released);
    assert_eq!(holder(&link.redis).await, "");
}

#[tokio::test]
async fn b07_a_lock_that_came_too_late_is_none() {
    // Time: the lease ends before the answer comes.
    let link = Link::with("ttl=300ms&command_timeout=5s").await;
    link.proxy.delay(Direction::ToClient, Duration::from_millis(350)); // Time: as above.
    let error = link.locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied));
    link.proxy.heal();
    link.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b13_waiting_for_many_locks_takes_one_subscription() {
    const LOCKS: usize = 50;
    for wait in ["queue", "notify"] {
        let link = Link::with(&format!("ttl=10s&wait={wait}")).await;
        let mut waiters = Vec::new();
        for number in 0..LOCKS {
            link.redis.call(&["SET", &format!("lock:{number}"), "theirs"]).await;
            waiters.push(acquiring(link.locks.mutex(number.to_string())));
        }
        let last = (LOCKS - 1).to_string();
        until("they wait", async || link.locks.inspect(&last).await.unwrap().waiters == 1).await;
        assert_eq!(link.proxy.connections(), 2, "{wait}: one for commands, and one that is pushed to");
        if wait == "queue" {
            let channels = link.redis.call(&["PUBSUB", "CHANNELS", "*"]).await;
            assert_eq!(channels.array().unwrap().len(), 1, "one inbox for all locks");
        }
        link.redis.call(&["FLUSHALL"]).await;
        for waiter in waiters {
            give_back(come(waiter).await).await;
        }
    }
}

/// Nothing waits for replicas, and nothing blocks.
#[tokio::test(flavor = "multi_thread")]
async fn b16_b25_no_command_blocks_the_shared_connection() {
    let link = Link::with("ttl=5s").await;
    link.redis.call(&["SET", KEY, "theirs"]).await;
    let waiter = acquiring(link.locks.mutex("a"));
    until("it waits", async || link.locks.inspect("a").await.unwrap().waiters == 1).await;
    // Others go on while one waits.
    for _ in 0..20 {
        give_back(take(&link.locks, "b").await).await;
    }
    assert!(!waiter.is_finished());
    assert!(link.redis.text(&["INFO", "clients"]).await.contains("blocked_clients:0"));
    let guard = take(&link.locks, "c").await;
    lock_testkit::is_renewed(&guard).await;
    give_back(guard).await;
    link.redis.call(&["DEL", KEY]).await;
    give_back(come(waiter).await).await;

    let stats = link.redis.text(&["INFO", "commandstats"]).await;
    let used: BTreeSet<_> = stats.lines().filter_map(|line| line.split([':', '_']).nth(1)).collect();
    assert!(used.contains("evalsha"), "{used:?}");
    for blocks in ["wait", "waitaof", "blpop", "brpop", "blmove", "bzpopmin", "xread", "keys", "watch"] {
        assert!(!used.contains(blocks), "{blocks} was called");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_a_dropped_future_takes_no_answer_of_another() {
    let link = Link::with("ttl=60s").await;
    let locks = link.locks.clone();
    let dropping = tokio::spawn(async move {
        for k in (0..4).cycle().take(400) {
            let mutex = locks.mutex(format!("dropped-{k}"));
            drop(cancel_after(k, mutex.acquire()).await);
            drop(cancel_after(k, locks.inspect("dropped")).await);
        }
    });
    let mut last = None;
    while !dropping.is_finished() {
        let guard = take(&link.locks, "a").await;
        assert!(Some(guard.token()) > last, "the answer to another request");
        last = Some(guard.token());
        assert_eq!(holder(&link.redis).await, guard.owner().to_string());
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
    come(dropping).await;
}

#[tokio::test]
async fn b24_a_ttl_is_in_milliseconds() {
    let link = Link::with("ttl=5500ms").await; // Time: no whole seconds.
    let pttl = async || link.redis.call(&["PTTL", KEY]).await.int().unwrap();
    let guard = take(&link.locks, "a").await;
    assert!((5_001..=5_500).contains(&pttl().await));
    guard.extend(Duration::from_millis(7_500)).await.unwrap(); // Time: no whole seconds.
    assert!((7_001..=7_500).contains(&pttl().await));
    for ttl in [Duration::ZERO, Duration::from_micros(1_000), Duration::from_micros(99_999)] {
        let refused = link.locks.mutex_with("b", LockOptions::new().ttl(ttl)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
        assert_eq!(guard.extend(ttl).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
