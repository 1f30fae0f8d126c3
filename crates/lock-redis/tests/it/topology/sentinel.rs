//! Sentinels: which master they name, and how it is followed. That locks work there is in the conformance suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, GuardState, Locks, Released};
use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{FaultProxy, RedisSentinel, RedisServer, give_back, is_renewed, soon, take, until};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::common::pretend;
use crate::common::{RECIPES, acquire_in_the_end, connect, try_connect};

/// Waits until the replica has this lock: what it has not yet got is lost with the master.
async fn until_replicated(sentinel: &RedisSentinel, name: &str) {
    let key = format!("lock:{name}");
    until("the lock is replicated", async || sentinel.servers()[1].has_key(&key).await).await;
}

/// A server that takes itself for a master still, the one after it, and a sentinel that names the first.
struct Succession {
    old: RedisServer,
    new: RedisServer,
    named: Arc<AtomicU16>,
    url: String,
}

impl Succession {
    async fn start() -> Self {
        let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
        let named = Arc::new(AtomicU16::new(old.port()));
        // It announces nothing, as to one that was not subscribed at that moment.
        let url = format!("redis+sentinel://{}/main", pretend::sentinel(Arc::clone(&named), None).await);
        Self { old, new, named, url }
    }

    /// Demands that locks are acquired at the new master soon after the sentinel names it.
    async fn is_followed(&self, locks: &Locks) {
        self.named.store(self.new.port(), Ordering::Relaxed);
        come_to(&self.new, locks).await;
    }
}

/// Waits until the locks are acquired at this server.
async fn come_to(new: &RedisServer, locks: &Locks) {
    until("locks are acquired at the new master", async || {
        let guard = take(locks, "a").await;
        let is_there = new.has_key("lock:a").await;
        let released = guard.release().await.unwrap_or_else(|error| panic!("{error}"));
        // What the old master granted is not at the new one, where it is perhaps released already.
        assert!(!is_there || released == Released::Released, "{released:?}");
        is_there
    })
    .await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_name_the_master() {
    let sentinel = RedisSentinel::start().await.unwrap();
    // One that is down costs nothing.
    sentinel.sentinels()[0].kill();
    give_back(take(&connect(&sentinel.url()).await, "a").await).await;

    let unknown = sentinel.url().replace(RedisSentinel::NAME, "another");
    let error = try_connect(&unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("\"another\""), "{error}");
    let direct = try_connect(&sentinel.sentinels()[1].url()).await.unwrap_err();
    assert_eq!(direct.kind(), ErrorKind::InvalidConfig);
    assert!(direct.to_string().contains("redis+sentinel://"), "{direct}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn locks_go_on_after_the_master_died() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=24s", sentinel.url())).await;
    let (held, before) = (take(&locks, "held").await, take(&locks, "b").await);
    let last = before.token();
    give_back(before).await;
    // Written after the release.
    let last_write = take(&locks, "last").await;
    until_replicated(&sentinel, "last").await;
    drop(last_write);

    sentinel.servers()[0].kill();
    let after = acquire_in_the_end(&locks, "b").await;
    assert!(after.token() > last, "{:?} after {last:?}", after.token());
    give_back(after).await;
    // The lock that was held is on the new master, and renewed there.
    is_renewed(&held).await;
    let last = held.token();
    give_back(held).await;
    let next = take(&locks, "held").await;
    assert!(next.token() > last);
    give_back(next).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_failover_on_command_is_followed() {
    for recipe in RECIPES {
        let sentinel = RedisSentinel::start().await.unwrap();
        let locks = connect(&format!("{}?ttl=24s&{recipe}", sentinel.url())).await;
        let held = take(&locks, "held").await;
        until_replicated(&sentinel, "held").await;
        sentinel.sentinels()[0].call(&["SENTINEL", "FAILOVER", RedisSentinel::NAME]).await;
        until("a failover", async || sentinel.servers()[0].role().await.as_deref() == Some("slave")).await;
        give_back(acquire_in_the_end(&locks, "b").await).await;
        // What the old master granted meanwhile is lost. The lock is renewed at the new one before it ends.
        is_renewed(&held).await;
        assert_eq!(held.state(), GuardState::Valid);
        give_back(held).await;
        assert!(!sentinel.servers()[1].has_key("lock:held").await);
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn an_announced_master_takes_precedence_over_the_old_one() {
    for slowly in [false, true] {
        let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
        let proxy = FaultProxy::start(old.addr(), Protocol::Redis).unwrap();
        if slowly {
            // Time: the announcement comes while the old one is dialed.
            proxy.delay(Direction::ToClient, Duration::from_millis(500));
        }
        // The old one takes itself for a master still, and so does the sentinel that is asked.
        let sentinel = pretend::sentinel(Arc::new(AtomicU16::new(proxy.port())), Some(new.port())).await;
        let locks = connect(&format!("redis+sentinel://{sentinel}/main?connect_timeout=20s")).await;
        if slowly {
            let guard = take(&locks, "a").await;
            assert!(new.has_key("lock:a").await);
            give_back(guard).await;
        }
        come_to(&new, &locks).await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_failover_without_an_announcement_is_followed() {
    let servers = Succession::start().await;
    // The connection to the old one stays.
    let locks = connect(&servers.url).await;
    give_back(take(&locks, "a").await).await;
    servers.is_followed(&locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_are_followed_also_when_the_runtime_that_did_has_ended() {
    for ends_at_once in [true, false] {
        let servers = Succession::start().await;
        let url = servers.url.clone();
        let first = spawn_blocking(move || {
            let first = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let locks = first.block_on(connect(&url));
            ((!ends_at_once).then_some(first), locks)
        });
        let (still, locks) = first.await.unwrap();
        if let Some(still) = still {
            // The connection is made anew by this runtime, while the first one still follows.
            servers.old.call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
            give_back(acquire_in_the_end(&locks, "a").await).await;
            still.shutdown_background();
        } else {
            give_back(take(&locks, "a").await).await;
        }
        servers.is_followed(&locks).await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_sentinel_that_hangs_is_left_for_another() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let _locks = connect(&sentinel.url()).await;
    let is_followed = async |number: usize| {
        sentinel.sentinels()[number].text(&["CLIENT", "LIST"]).await.contains("cmd=subscribe")
    };
    until("the first is followed", async || is_followed(0).await).await;
    assert!(!is_followed(1).await);
    sentinel.sentinels()[0].stop();
    until("the second is followed", async || is_followed(1).await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_hangs_leaves_time_for_the_next() {
    let (hangs, works) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    hangs.stop();
    // Most name the one that hangs, though not so many that the others are not asked.
    let mut sentinels = Vec::new();
    for names in [&hangs, &hangs, &works] {
        let names = Arc::new(AtomicU16::new(names.port()));
        sentinels.push(pretend::sentinel(names, Some(works.port())).await.to_string());
    }
    sentinels.push("127.0.0.1:1".to_owned());
    let url = format!("redis+sentinel://{}/main?connect_timeout=5s", sentinels.join(","));
    let guard = take(&soon(connect(&url)).await, "a").await;
    assert!(works.has_key("lock:a").await);
    give_back(guard).await;
}
