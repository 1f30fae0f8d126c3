//! Mistakes in migrations, stores that are not there, and the errors that users get.

use std::time::Duration;

use lock_core::migration::MigrationTarget;
use lock_testkit::{PATIENCE, RedisServer, ZooKeeper, give_back, migration_url, take, until};
use polylock::migrate::Phase;
use polylock::{ErrorKind, Locks, MigrationConfig, Record, Rung, Zk, ZkConfig};
use tokio::time::sleep;

use crate::common::{SECRET, Stores, hides_the_secret, must_help, take_at_last};

/// Stores that do not answer: no error of a URL needs them.
const REDIS: &str = "redis://127.0.0.1:1";
const ZK: &str = "zk://127.0.0.1:1";

#[tokio::test]
async fn bad_urls_are_refused_without_a_connection() {
    let url = |options: &str| migration_url("shop", REDIS, ZK, options);
    let between = |from: &str, to: &str| migration_url("shop", from, to, "");
    let redlock = "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    for (url, says) in [
        (between(REDIS, REDIS), "both stores are redis"),
        (between(ZK, ZK), "both stores are zk"),
        (between(ZK, REDIS), "cannot move from zk"),
        (between(redlock, REDIS), "cannot move to redis"),
        (between(REDIS, redlock), "cannot move to redlock"),
        (between("memory://a", ZK), "cannot move from memory"),
        (between("postgres://u@h/db", ZK), "cannot move from postgres"),
        (between("flock:///nowhere", ZK), "cannot move from flock"),
        (between(REDIS, "memory://a"), "cannot move to memory"),
        (between(&between(REDIS, ZK), ZK), "cannot move from migrate"),
        (between(REDIS, &between(REDIS, ZK)), "cannot move to migrate"),
        (between("consul://h", ZK), "consul://"),
        (between("redis://h:port", ZK), ""),
        (between(REDIS, "zk://"), ""),
        (between(REDIS, "zk://h?ttl=10s"), "session_timeout"),
        (url("&rung=sideways"), "old, shadow, dual, move or new"),
        (url("&rung="), "old, shadow, dual, move or new"),
        (url("&rungs=dual"), "rung"),
        (url("&ttl=10s"), "tombstone_life"),
        (url("&rung=dual&rung=move"), "twice"),
        (url("&fallback=new"), "fallback=old"),
        (url("&tombstone_life=71h"), "at least three days"),
        (url("&tombstone_life=soon"), "500ms or 10s"),
        (migration_url("shop", redlock, ZK, "&rung=move"), "redlock:// has no rung move"),
        (migration_url("", REDIS, ZK, ""), "namespace"),
        (migration_url("shop/path", REDIS, ZK, ""), ""),
        ("migrate://shop/path?from=redis%3A%2F%2Fa&to=zk%3A%2F%2Fb".into(), "neither a path nor a user"),
        ("migrate://me@shop?from=redis%3A%2F%2Fa&to=zk%3A%2F%2Fb".into(), "neither a path nor a user"),
        (
            format!("migrate://me:{SECRET}@shop?from=redis%3A%2F%2Fa&to=zk%3A%2F%2Fb"),
            "neither a path nor a user",
        ),
        ("migrate://shop".into(), "from=URL"),
        ("migrate://shop?from=redis%3A%2F%2Fa".into(), "to=URL"),
        ("migrate://shop?to=zk%3A%2F%2Fa".into(), "from=URL"),
        // An option of the nested URL is taken for one of the migration.
        (
            "migrate://shop?from=redis://h?ttl=10s&prefix=a:&to=zk://h?session_timeout=10s".into(),
            "percent-encode",
        ),
    ] {
        refused(&url, ErrorKind::InvalidConfig, says).await;
    }
}

#[tokio::test]
async fn a_password_in_a_nested_url_is_never_shown() {
    let with = |url: &str| url.replace("://", &format!("://me:{SECRET}@"));
    for (from, to) in [
        (with(REDIS), with("zk://h:port")),
        (with("redis://h:port"), with(ZK)),
        (with("consul://h"), with(ZK)),
        (with(REDIS), with("redis://h")),
        (with(ZK), with(ZK)),
        // Not one that can be parsed.
        (format!("redis:me:{SECRET}@h"), with(ZK)),
        (format!("redis://me:{SECRET}/@h"), with(ZK)),
    ] {
        refused(&migration_url("shop", &from, &to, ""), ErrorKind::InvalidConfig, "").await;
    }
    // Not escaped, it is no value of an option.
    for url in [
        format!("migrate://shop?from=redis://me:{SECRET}@h&to=zk://h"),
        format!("migrate://shop?from=redis://h&to=zk://me:{SECRET}@h"),
        format!("migrate://shop?from=redis%3A%2F%2Fme:{SECRET}@h&to=zk%3A%2F%2Fh&x=1"),
        format!("migrate://shop?from=redis%3A%2F%2Fme%3Apw&{SECRET}%40h&to=zk%3A%2F%2Fh"),
    ] {
        refused(&url, ErrorKind::InvalidConfig, "").await;
    }

    let url = migration_url("shop", &with(REDIS), &with(ZK), "&fallback=old");
    let (config, ..) = MigrationConfig::from_url(&url).unwrap();
    hides_the_secret(&config);
    hides_the_secret(&polylock::backend::LockUrl::parse(&url).unwrap());
    let lazy = Locks::connect_lazy(&url).unwrap();
    hides_the_secret(&lazy);
    let error = lazy.mutex("a").acquire().await.unwrap_err();
    must_help(&error, ErrorKind::Unavailable);

    let stores = of(RedisServer::builder().password(SECRET).start().await.unwrap()).await;
    let locks = stores.open("&rung=dual").await.unwrap();
    hides_the_secret(&locks);
    let guard = take(&locks, "a").await;
    hides_the_secret(&guard);
    // A password that is not the right one.
    let from = stores.from.replace(SECRET, "Wr0ng-Pa55");
    let error = Locks::connect(&migration_url("shop", &from, &stores.to(), "")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error} {error:?}").contains("Wr0ng"), "{error:?}");
    let record = String::from_utf8(record(&stores).await.to_bytes()).unwrap();
    assert!(!record.contains(SECRET), "{record}");
}

#[tokio::test]
async fn records_that_cannot_be_followed_are_refused() {
    let stores = stores().await;
    // `new` without the seal.
    let error = stores.open("&rung=new").await.unwrap_err();
    assert!(must_help(&error, ErrorKind::InvalidConfig).contains("seal"), "{error}");

    let (old, dual) = (stores.open("&rung=old").await.unwrap(), stores.open("&rung=dual").await.unwrap());
    for (text, says) in [
        (r#"{"format":2,"phases":["open"]}"#, "format 2"),
        ("rung: dual", "cannot be read"),
        (r#"{"format":1,"namespace":"shop"}"#, "cannot be read"),
    ] {
        write(&stores, text.as_bytes()).await;
        for options in ["", "&rung=dual", "&rung=old", "&fallback=old"] {
            let error = stores.open(options).await.unwrap_err();
            assert!(must_help(&error, ErrorKind::Unexpected).contains(says), "{error}");
        }
        // What runs already keeps its rung; without the record it is unknown which tombstones count.
        passes(&old, "a").await;
        let error = dual.mutex("a").acquire().await.unwrap_err();
        assert!(must_help(&error, ErrorKind::Unexpected).contains(says), "{error}");
    }
    let record = Record::new("shop", "redis://?prefix=lock:", "zk://h");
    write(&stores, &record.to_bytes()).await;
    passes(&dual, "a").await;
}

#[tokio::test]
async fn two_migrations_must_not_share_a_directory() {
    let stores = stores().await;
    passes(&stores.open("&rung=dual").await.unwrap(), "a").await;
    let other = migration_url("store", &stores.from, &stores.to(), "&rung=dual");
    let error = Locks::connect(&other).await.unwrap_err();
    let text = must_help(&error, ErrorKind::InvalidConfig);
    for says in ["\"shop\"", "\"store\"", "another dir"] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[tokio::test]
async fn two_migrations_must_not_share_a_prefix() {
    let (stores, elsewhere) = tokio::join!(stores(), ZooKeeper::start());
    let elsewhere = elsewhere.unwrap();
    passes(&stores.open("&rung=dual").await.unwrap(), "a").await;
    let dir = format!("{}&dir=/other", stores.to());
    for (namespace, to) in [("shop", elsewhere.url()), ("store", elsewhere.url()), ("store", dir)] {
        let error = Locks::connect(&migration_url(namespace, &stores.from, &to, "")).await.unwrap_err();
        let text = must_help(&error, ErrorKind::InvalidConfig);
        assert!(text.contains("another migration") && text.contains("another prefix"), "{text}");
        assert!(text.contains("shop"), "the migration that has the prefix is not named: {text}");
    }
    // Another prefix is another migration's.
    let from = format!("{}?prefix=other:", stores.redis.url());
    let other = migration_url("store", &from, &elsewhere.url(), "&rung=dual");
    passes(&Locks::connect(&other).await.unwrap(), "a").await;
}

#[tokio::test]
async fn servers_may_be_spelled_differently() {
    let stores = stores().await;
    let spelled = |url: String| url.replace("127.0.0.1", "localhost");
    let one = stores.open("&rung=move").await.unwrap();
    let url = migration_url("shop", &spelled(stores.from.clone()), &spelled(stores.to()), "&rung=move");
    let two = Locks::connect(&url).await.unwrap();
    for (first, second, name) in [(&one, &two, "a"), (&two, &one, "b")] {
        let guard = take(first, name).await;
        assert!(is_busy(second, name).await, "both hold {name}");
        let token = guard.token();
        give_back(guard).await;
        // By the tombstone that the other one wrote.
        let next = take(second, name).await;
        assert!(next.token() > token);
        assert!(is_busy(first, name).await, "both hold {name}");
        give_back(next).await;
    }
}

#[tokio::test]
async fn without_zookeeper_a_process_starts_on_the_old_store_and_follows_later() {
    let stores = stores().await;
    stores.operator().await.set(Rung::Dual, "*").await.unwrap();
    stores.zk.kill();
    for options in ["", "&rung=dual", "&rung=move", "&rung=new"] {
        let error = stores.open(options).await.unwrap_err();
        must_help(&error, ErrorKind::Unavailable);
        assert!(error.is_retryable(), "{error}");
    }
    let falls_back = stores.open("&fallback=old").await.unwrap();
    let pinned = stores.open("&rung=old").await.unwrap();
    let redis = Locks::connect(&stores.from).await.unwrap();
    for locks in [&falls_back, &pinned] {
        let guard = take(locks, "a").await;
        assert!(is_busy(&redis, "a").await);
        give_back(guard).await;
    }

    stores.zk.start_again().await.unwrap();
    let zk = Locks::connect(&stores.to()).await.unwrap();
    until("the record is followed", async || {
        let guard = take(&falls_back, "a").await;
        let is_on_both = is_busy(&zk, "a").await;
        give_back(guard).await;
        is_on_both
    })
    .await;
    // The other one is registered, and stays where its URL says.
    until("both are registered", async || {
        let sessions = stores.operator().await.status().await.unwrap().sessions;
        let members = sessions.iter().filter_map(|session| session.member.as_ref());
        let mut rungs: Vec<_> = members.map(|member| (member.rung, member.pinned)).collect();
        rungs.sort_unstable();
        rungs == [(Rung::Old, Some(Rung::Old)), (Rung::Dual, None)]
    })
    .await;
    let guard = take(&pinned, "b").await;
    assert!(!is_busy(&zk, "b").await);
    give_back(guard).await;

    // Without both there is nothing to start on.
    stores.redis.kill();
    stores.zk.kill();
    for options in ["", "&fallback=old", "&rung=old"] {
        must_help(&stores.open(options).await.unwrap_err(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn without_zookeeper_the_old_rungs_go_on_and_the_others_come_back() {
    let stores = stores().await;
    let mut processes = Vec::new();
    for rung in ["old", "shadow", "dual", "move"] {
        let locks = stores.open(&format!("&rung={rung}")).await.unwrap();
        passes(&locks, &format!("{rung}-before")).await;
        processes.push((rung, locks));
    }
    stores.zk.kill();
    for (rung, locks) in &processes {
        for name in [rung.to_string(), format!("{rung}-before")] {
            if matches!(*rung, "old" | "shadow") {
                passes(locks, &name).await;
                continue;
            }
            let error = locks.mutex(&name).try_acquire_for(PATIENCE).await.unwrap_err();
            must_help(&error, ErrorKind::Unavailable);
            assert_eq!(error.lock().map(|lock| lock.as_str()), Some(&*name), "{error}");
        }
    }
    // Time: the sessions end.
    sleep(Duration::from_secs(12)).await;
    stores.zk.start_again().await.unwrap();
    for (rung, locks) in &processes {
        give_back(take_at_last(locks, rung).await).await;
    }
}

#[tokio::test]
async fn after_the_seal_redis_may_be_gone() {
    let stores = stores().await;
    let locks = stores.open("&rung=move").await.unwrap();
    passes(&locks, "a").await;
    let mut record = record(&stores).await;
    record.phase = Phase::Sealed;
    record.set(Rung::New, "*");
    write(&stores, &record.to_bytes()).await;
    stores.redis.kill();
    for options in ["", "&rung=new", "&rung=dual", "&fallback=old"] {
        let late = stores.open(options).await.unwrap();
        for name in ["a", "b"] {
            let guard = take(&late, name).await;
            assert!(is_busy(&locks, name).await, "both hold {name}");
            give_back(guard).await;
        }
        assert!(late.inspect("a").await.unwrap().holders.is_empty());
        late.list("").await.unwrap();
        late.close().await.unwrap();
    }
}

async fn stores() -> Stores {
    of(RedisServer::start().await.unwrap()).await
}

async fn of(redis: RedisServer) -> Stores {
    // Time: how long an attempt takes that is in vain.
    let from = format!("{}?ttl=5s&connect_timeout=1s", redis.url());
    Stores::with(redis, from).await
}

async fn target(stores: &Stores) -> Zk {
    Zk::connect(ZkConfig::from_url(&stores.to()).unwrap()).await.unwrap()
}

async fn record(stores: &Stores) -> Record {
    let stored = target(stores).await.read_record().await.unwrap().unwrap();
    Record::parse(&stored, "shop").unwrap()
}

/// Writes the text of the record, whatever it is now.
async fn write(stores: &Stores, text: &[u8]) {
    let zk = target(stores).await;
    let version = zk.read_record().await.unwrap().map(|stored| stored.version);
    assert!(zk.write_record(text, version).await.unwrap(), "somebody else writes it");
}

async fn is_busy(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_acquire().await.unwrap().is_none()
}

/// Acquires a lock that is free, and gives it back.
async fn passes(locks: &Locks, name: &str) {
    give_back(take(locks, name).await).await;
}

/// The error of a URL, which takes no server.
async fn refused(url: &str, kind: ErrorKind, says: &str) {
    let shown = url.replace(SECRET, "...");
    for error in [
        Locks::connect(url).await.map(drop).expect_err(&shown),
        Locks::connect_lazy(url).map(drop).expect_err(&shown),
    ] {
        let text = must_help(&error, kind);
        assert!(!error.is_retryable(), "trying again does not help: {error}");
        assert!(text.contains(says), "{shown} does not say {says:?}: {text}");
    }
}
