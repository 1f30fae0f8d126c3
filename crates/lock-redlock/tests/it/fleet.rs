//! What the masters are: how each is reached, how they are distinguished, what is shown of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, FindingLevel, Holder, Locks, ServerLockState};
use lock_redlock::deadpool_redis::{Config, Runtime};
use lock_redlock::redis::IntoConnectionInfo;
use lock_redlock::{MasterConfig, RedlockConfig};
use lock_testkit::proxy::{Direction, Protocol, redis_command};
use lock_testkit::{FaultProxy, RedisFive, RedisServer, acquiring, come, give_back, until};
use tokio::time::{Instant, sleep, timeout};

use crate::common::{connect, holder, proxied};

const PATIENCE: Duration = Duration::from_secs(20);

async fn three() -> (RedisFive, Locks) {
    let three = RedisFive::start_n(3).await.unwrap();
    let locks = connect(&format!("{}?ttl=3s", three.url())).await.unwrap();
    (three, locks)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_master_has_its_own_user_password_and_pool() {
    const RIGHTS: &str = "+@all ~* &*";
    let open = RedisServer::start().await.unwrap();
    let secret = RedisServer::builder().password("p1").start().await.unwrap();
    let listed = RedisServer::builder().user("ann", &format!("on >p2 {RIGHTS}")).start().await.unwrap();
    let info = |url: String| url.into_connection_info().unwrap();
    let pool = Config::from_url(open.url()).create_pool(Some(Runtime::Tokio1)).unwrap();
    let masters = [
        MasterConfig::new(info(open.url())).pool(pool.clone()),
        info(secret.url()).into(),
        info(format!("redis://ann:p2@{}", listed.addr())).into(),
    ];
    let config = RedlockConfig::new(masters);
    assert!(!format!("{config:?}").contains("p1"), "{config:?}");
    let locks = config.connect().await.unwrap();
    assert!(pool.status().max_size > 0);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let owner = guard.owner().to_string();
    until("all masters have the key", async || {
        holder(&open).await.as_ref() == Some(&owner) && holder(&listed).await.as_ref() == Some(&owner)
    })
    .await;
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_addresses_of_one_server_are_refused() {
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    let twin = FaultProxy::start(masters[0].addr(), Protocol::Redis).unwrap();
    let url = format!("redlock://{},{},{}", masters[0].addr(), masters[1].addr(), twin.addr());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(
        text.contains(&masters[0].addr().to_string()) && text.contains(&twin.addr().to_string()),
        "{text}"
    );

    // One that was not there at first does not vote either.
    twin.refuse(true);
    let locks = connect(&url).await.unwrap();
    twin.refuse(false);
    until("the twin is found", async || locks.doctor().await.unwrap().to_string().contains("are one server"))
        .await;
    masters[1].kill();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("agreed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_an_identity_does_not_vote() {
    let rules = "on nopass ~* &* +@all -info";
    let mut masters = Vec::new();
    for _ in 0..3 {
        masters.push(RedisServer::builder().user("ann", rules).start().await.unwrap());
    }
    let addrs: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let locks = connect(&format!("redlock://ann:x@{}", addrs.join(","))).await.unwrap();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("+info"), "{error}");
    for master in &masters {
        until("it is taken back", async || holder(master).await.is_none()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_that_are_named_are_enough() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let three = RedisFive::start_n(3).await.unwrap();
    let masters = three.servers();
    let rule = ["ACL", "SETUSER", "ann", "on", ">x"];
    for master in masters {
        master.command(&rule).await.unwrap();
    }
    let addrs: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let url = format!("redlock://ann:x@{}", addrs.join(","));
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    let named: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with(['+', '~', '&'])).collect();
    for master in masters {
        master.command(&[&rule[..3], &named[..]].concat()).await.unwrap();
    }
    let locks = connect(&url).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let mutex = locks.mutex("a");
    let waiting = acquiring(connect(&url).await.unwrap().mutex("a"));
    sleep(Duration::from_millis(300)).await;
    give_back(guard).await;
    let guard = come(waiting).await;
    assert!(mutex.try_acquire().await.unwrap().is_none());
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_load_no_scripts_vote() {
    let user = RedisServer::builder().user("ann", "on nopass ~* &* +@all -script");
    let three: RedisFive = user.start_n(3).await.unwrap();
    let url = format!("{}?ttl=1s", three.url().replace("redlock://", "redlock://ann:x@"));
    let (locks, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap().mutex("a"));
    let guards = [locks.mutex("a").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap()];
    let waiting = acquiring(other);
    for master in three.servers() {
        master.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    for guard in guards {
        assert!(guard.is_valid(), "it is renewed");
        give_back(guard).await;
    }
    let next = come(waiting).await;
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_without_an_identity_after_a_restart_does_not_vote() {
    let mut masters = Vec::new();
    for _ in 0..3 {
        let master = RedisServer::builder().user("ann", "on nopass ~* &* +@all -info").start().await.unwrap();
        // Until it is restarted.
        master.command(&["ACL", "SETUSER", "ann", "+info"]).await.unwrap();
        masters.push(master);
    }
    let addrs: Vec<_> = masters.iter().map(|master| master.addr().to_string()).collect();
    let locks = connect(&format!("redlock://ann:x@{}", addrs.join(","))).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    masters[0].restart().await.unwrap();
    masters[1].kill();
    until("it does not vote", async || {
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        error.to_string().contains("may not read whether the master has restarted")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_what_each_master_sees() {
    let (three, locks) = three().await;
    let _guard = locks.mutex("a").acquire().await.unwrap();
    let masters = three.servers();
    until("all have it", async || holder(&masters[1]).await.is_some() && holder(&masters[2]).await.is_some())
        .await;
    let ours = masters[0].command(&["GETSET", "lock:a", "theirs"]).await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Known(_))), "{state:?}");
    masters[2].kill();
    let state = locks.inspect("a").await.unwrap();
    assert_ne!(state.holder(), None, "the one that is not seen may have it for either");
    assert!(matches!(&state.servers[0].view, ServerLockState::Held(Holder::Foreign(_))), "{state:?}");
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    masters[0].command(&["SET", "lock:a", ours.text().unwrap()]).await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Known(_))), "{state:?}");
    let views: Vec<_> = state.servers.iter().map(|seen| (seen.server.clone(), &seen.view)).collect();
    let address = |number: usize| masters[number].addr().to_string();
    assert!(
        matches!(&views[0], (server, ServerLockState::Held(Holder::Known(_))) if *server == address(0)),
        "{views:?}"
    );
    assert!(
        matches!(&views[1], (server, ServerLockState::Held(Holder::Known(_))) if *server == address(1)),
        "{views:?}"
    );
    assert!(matches!(&views[2], (server, ServerLockState::Unknown(_)) if *server == address(2)), "{views:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_broken_where_one_master_has_no_lock() {
    let (three, locks) = three().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let masters = three.servers();
    until("all have it", async || holder(&masters[2]).await.is_some()).await;
    masters[2].command(&["DEL", "lock:a"]).await.unwrap();
    masters[2].command(&["HSET", "lock:a", "some", "data"]).await.unwrap();
    let error = locks.break_lock("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for master in &masters[..2] {
        assert_eq!(holder(master).await, Some(guard.owner().to_string()), "removed too early");
    }
    masters[2].command(&["DEL", "lock:a"]).await.unwrap();
    assert!(locks.break_lock("a").await.unwrap());
    timeout(PATIENCE, guard.lost()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_that_lost_the_key_gets_it_again_with_the_next_renewal() {
    let (three, locks) = three().await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let (masters, owner) = (three.servers(), guard.owner().to_string());
    until("all have it", async || holder(&masters[2]).await.is_some()).await;
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    until("it is healed", async || holder(&masters[0]).await.as_ref() == Some(&owner)).await;
    // The lock of another client there is not touched.
    masters[0].command(&["SET", "lock:a", "theirs"]).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(holder(&masters[0]).await.as_deref(), Some("theirs"));
    assert!(guard.is_valid());
    guard.extend(Duration::from_secs(3)).await.unwrap();
    masters[0].command(&["DEL", "lock:a"]).await.unwrap();
    until("it is healed again", async || holder(&masters[0]).await.is_some()).await;
    give_back(guard).await;
    for master in masters {
        until("all is released", async || holder(master).await.is_none()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_lease_in_a_batch_does_not_wait_for_a_hung_master() {
    let five = RedisFive::start().await.unwrap();
    let locks =
        connect(&format!("{}?ttl=10s&master_timeout=5s&connect_timeout=5s", five.url())).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let masters = five.servers();
    until("all have it", async || holder(&masters[4]).await.is_some() && holder(&masters[1]).await.is_some())
        .await;
    for master in &masters[..2] {
        master.command(&["SET", "lock:a", "theirs"]).await.unwrap();
    }
    masters[4].stop();
    // Two are ours, two are not: only the one that hangs could say.
    let started = Instant::now();
    let held = guard.verify().await;
    assert!(held.is_err(), "{held:?}");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    masters[4].cont();
    until("it says so", async || guard.extend(Duration::from_secs(10)).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_are_too_far_away_for_the_ttl_are_refused() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (proxies, url) = proxied(&three);
    for proxy in &proxies {
        proxy.delay(Direction::ToClient, Duration::from_millis(100));
    }
    let url = format!("{url}?master_timeout=2s&connect_timeout=5s");
    let error = connect(&format!("{url}&ttl=200ms")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("too short: a quorum of the masters"), "{error}");
    let locks = connect(&format!("{url}&ttl=1s")).await.unwrap();
    let report = locks.doctor().await.unwrap();
    let far = report.warnings().find(|finding| finding.what.contains("which is long for a ttl"));
    assert!(far.is_some_and(|finding| finding.level == FindingLevel::Warning), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_that_are_slow_for_a_moment_are_not_too_far_away() {
    let three = RedisFive::start_n(3).await.unwrap();
    let (proxies, url) = proxied(&three);
    let asked = Arc::new(AtomicUsize::new(0));
    for proxy in &proxies {
        let (asked, is_time) = (Arc::clone(&asked), redis_command("TIME"));
        proxy.cut_when(move |request| {
            asked.fetch_add(usize::from(is_time(request)), Ordering::SeqCst);
            false
        });
        proxy.delay(Direction::ToClient, Duration::from_millis(500));
    }
    let url = format!("{url}?ttl=1s&master_timeout=5s&connect_timeout=20s");
    let connecting = tokio::spawn(async move { connect(&url).await });
    // Each is asked once when it is examined, and then to see how far away it is.
    until("they are measured", async || asked.load(Ordering::SeqCst) == 6).await;
    sleep(Duration::from_millis(400)).await;
    proxies.iter().for_each(FaultProxy::heal);
    let locks = connecting.await.unwrap().unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_lease_than_restarted_masters_wait_for_is_refused() {
    let (_three, locks) = three().await;
    let options = lock_core::LockOptions::new().ttl(Duration::from_secs(60));
    let error = locks.mutex_with("a", options).unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("longest_ttl"), "{error}");
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(guard.extend(Duration::from_secs(60)).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(guard.is_valid());
}
