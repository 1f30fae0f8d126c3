//! Which masters make a fleet: how each is reached, and how they are distinguished.

use std::time::Duration;

use lock_core::{ErrorKind, LockOptions};
use lock_redlock::deadpool_redis::{Config, Runtime};
use lock_redlock::redis::IntoConnectionInfo;
use lock_redlock::{MasterConfig, RedlockConfig};
use lock_testkit::proxy::Protocol;
use lock_testkit::{FaultProxy, LogCapture, RedisFive, RedisServer, give_back, take, until};

use crate::common::{connect, holder, start};

#[tokio::test(flavor = "multi_thread")]
async fn each_master_has_its_own_user_password_and_pool() {
    let open = RedisServer::start().await.unwrap();
    let secret = RedisServer::builder().password("p1").start().await.unwrap();
    let listed = RedisServer::builder().user("ann", "on >p2 +@all ~* &*").start().await.unwrap();
    let info = |url: String| url.into_connection_info().unwrap();
    let pool = Config::from_url(open.url()).create_pool(Some(Runtime::Tokio1)).unwrap();
    let config = RedlockConfig::new([
        MasterConfig::new(info(open.url())).pool(pool.clone()),
        info(secret.url()).into(),
        info(format!("redis://ann:p2@{}", listed.addr())).into(),
    ]);
    assert!(!format!("{config:?}").contains("p1"), "{config:?}");
    let locks = config.connect().await.unwrap();
    assert!(pool.status().max_size > 0);
    let guard = take(&locks, "a").await;
    let owner = Some(guard.owner().to_string());
    until("these two vote", async || holder(&open).await == owner && holder(&listed).await == owner).await;
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_addresses_of_one_server_are_refused() {
    let three = RedisFive::start_n(3).await.unwrap();
    let [one, other, _] = three.servers() else { unreachable!() };
    let twin = FaultProxy::start(one.addr(), Protocol::Redis).unwrap();
    let url = format!("redlock://{},{},{}", one.addr(), other.addr(), twin.addr());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let names = |addr: String| error.to_string().contains(&addr);
    assert!(names(one.addr().to_string()) && names(twin.addr().to_string()), "{error}");

    // One that was not there at first does not vote either.
    twin.refuse(true);
    let locks = connect(&url).await.unwrap();
    twin.refuse(false);
    until("the twin is found", async || locks.doctor().await.unwrap().to_string().contains("are one server"))
        .await;
    other.kill();
    let error = locks.mutex("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("agreed"), "{error}");
}

/// A caller that tries again each second would log each of them each time.
#[tokio::test]
async fn masters_that_are_all_away_are_named_by_the_error_and_not_in_the_log() {
    let (log, _guard) = LogCapture::begin();
    let error = connect("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3").await.unwrap_err();
    assert_eq!(error.code(), "no_quorum", "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert_eq!(log.warnings("unreachable"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_lease_than_restarted_masters_wait_for_is_refused() {
    let (_three, locks) = start(3, "ttl=6s").await;
    let minute = Duration::from_secs(60);
    let error = locks.mutex_with("a", LockOptions::new().ttl(minute)).unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("longest_ttl"), "{error}");
    let guard = take(&locks, "a").await;
    assert_eq!(guard.extend(minute).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    assert!(guard.is_valid());
}
