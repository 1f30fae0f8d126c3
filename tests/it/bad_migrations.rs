//! Mistakes in migrations, stores that are not there, and the errors that users get.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Backend;
use lock_core::migration::MigrationTarget;
use lock_testkit::{RedisServer, ZooKeeper, migration_url, until};
use polylock::migrate::Phase;
use polylock::{
    Error, ErrorKind, Guard, Locks, MigrationConfig, Operator, Record, Redis, RedisConfig, Rung, Zk, ZkConfig,
};
use tokio::time::sleep;

const SECRET: &str = "s3cret-Pa55";
/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than the session timeout, by which a session that is cut off ends.
const SESSION: Duration = Duration::from_secs(2);

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
        (between(REDIS, "memory://a"), "cannot move to memory"),
        (between(&between(REDIS, ZK), ZK), "cannot move from migrate"),
        (between(REDIS, &between(REDIS, ZK)), "cannot move to migrate"),
        (between("etcd://h", ZK), "etcd://"),
        (between("redis://h:port", ZK), ""),
        (between(REDIS, "zk://"), ""),
        (between(REDIS, "zk://h?ttl=1s"), "session_timeout"),
        (url("&rung=sideways"), "old, shadow, dual, move or new"),
        (url("&rung="), "old, shadow, dual, move or new"),
        (url("&rungs=dual"), "rung"),
        (url("&ttl=10s"), "tombstone_life"),
        (url("&rung=dual&rung=move"), "twice"),
        (url("&fallback=new"), "fallback=old"),
        (url("&tombstone_life=23h"), "at least a day"),
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
            "migrate://shop?from=redis://h?ttl=1s&prefix=a:&to=zk://h?session_timeout=4s".into(),
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
        (with("etcd://h"), with(ZK)),
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

    let stores = Stores::with(RedisServer::builder().password(SECRET).start().await.unwrap()).await;
    let locks = stores.open("&rung=dual").await.unwrap();
    hides_the_secret(&locks);
    let guard = hold(&locks, "a").await;
    hides_the_secret(&guard);
    // A password that is not the right one.
    let from = stores.from().replace(SECRET, "Wr0ng-Pa55");
    let error = Locks::connect(&migration_url("shop", &from, &stores.to(), "")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error} {error:?}").contains("Wr0ng"), "{error:?}");
    let record = String::from_utf8(stores.record().await.to_bytes()).unwrap();
    assert!(!record.contains(SECRET), "{record}");
}

#[tokio::test]
async fn records_that_cannot_be_followed_are_refused() {
    let stores = Stores::start().await;
    // `new` without the seal.
    let error = stores.open("&rung=new").await.unwrap_err();
    must_help(&error, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("seal"), "{error}");

    let (old, dual) = (stores.open("&rung=old").await.unwrap(), stores.open("&rung=dual").await.unwrap());
    for (text, says) in [
        (r#"{"format":2,"phases":["open"]}"#, "format 2"),
        ("rung: dual", "cannot be read"),
        (r#"{"format":1,"namespace":"shop"}"#, "cannot be read"),
    ] {
        stores.write(text.as_bytes()).await;
        for options in ["", "&rung=dual", "&rung=old", "&fallback=old"] {
            let error = stores.open(options).await.unwrap_err();
            must_help(&error, ErrorKind::Unexpected);
            assert!(error.to_string().contains(says), "{error}");
        }
        // What runs already keeps its rung; without the record it is unknown which tombstones count.
        hold(&old, "a").await.release().await.unwrap();
        let error = dual.mutex("a").acquire().await.unwrap_err();
        must_help(&error, ErrorKind::Unexpected);
        assert!(error.to_string().contains(says), "{error}");
    }
    let record = Record::new("shop", "redis://?prefix=lock:", "zk://h");
    stores.write(&record.to_bytes()).await;
    hold(&dual, "a").await.release().await.unwrap();
}

#[tokio::test]
async fn two_migrations_must_not_share_a_directory() {
    let stores = Stores::start().await;
    hold(&stores.open("&rung=dual").await.unwrap(), "a").await.release().await.unwrap();
    let other = migration_url("store", &stores.from(), &stores.to(), "&rung=dual");
    let error = Locks::connect(&other).await.unwrap_err();
    must_help(&error, ErrorKind::InvalidConfig);
    let text = error.to_string();
    for says in ["\"shop\"", "\"store\"", "another dir"] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[tokio::test]
async fn two_migrations_must_not_share_a_prefix() {
    let (stores, elsewhere) = tokio::join!(Stores::start(), ZooKeeper::start());
    let elsewhere = elsewhere.unwrap();
    hold(&stores.open("&rung=dual").await.unwrap(), "a").await.release().await.unwrap();
    let dir = format!("{}&dir=/other", stores.to());
    for (namespace, to) in [("shop", elsewhere.url()), ("store", elsewhere.url()), ("store", dir)] {
        let error = Locks::connect(&migration_url(namespace, &stores.from(), &to, "")).await.unwrap_err();
        must_help(&error, ErrorKind::InvalidConfig);
        let text = error.to_string();
        assert!(text.contains("another migration") && text.contains("another prefix"), "{text}");
        assert!(text.contains("shop"), "the migration that has the prefix is not named: {text}");
    }
    // Another prefix is another migration's.
    let from = format!("{}?prefix=other:", stores.redis.url());
    let other = migration_url("store", &from, &elsewhere.url(), "&rung=dual");
    hold(&Locks::connect(&other).await.unwrap(), "a").await.release().await.unwrap();
}

#[tokio::test]
async fn servers_may_be_spelled_differently() {
    let stores = Stores::start().await;
    let spelled = |url: String| url.replace("127.0.0.1", "localhost");
    let one = stores.open("&rung=move").await.unwrap();
    let url = migration_url("shop", &spelled(stores.from()), &spelled(stores.to()), "&rung=move");
    let two = Locks::connect(&url).await.unwrap();
    for (first, second, name) in [(&one, &two, "a"), (&two, &one, "b")] {
        let guard = hold(first, name).await;
        assert!(second.mutex(name).try_acquire().await.unwrap().is_none(), "both hold {name}");
        let token = guard.token();
        guard.release().await.unwrap();
        // By the tombstone that the other one wrote.
        let next = hold(second, name).await;
        assert!(next.token() > token);
        assert!(first.mutex(name).try_acquire().await.unwrap().is_none(), "both hold {name}");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn without_zookeeper_a_process_starts_on_the_old_store_and_follows_later() {
    let stores = Stores::start().await;
    stores.operator().await.set(Rung::Dual, "*").await.unwrap();
    stores.zk.kill();
    for options in ["", "&rung=dual", "&rung=move", "&rung=new"] {
        let error = stores.open(options).await.unwrap_err();
        must_help(&error, ErrorKind::Unavailable);
        assert!(error.is_retryable(), "{error}");
    }
    let falls_back = stores.open("&fallback=old").await.unwrap();
    let pinned = stores.open("&rung=old").await.unwrap();
    let redis = Locks::connect(&stores.from()).await.unwrap();
    for locks in [&falls_back, &pinned] {
        let guard = hold(locks, "a").await;
        assert!(redis.mutex("a").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    }

    stores.zk.start_again().await.unwrap();
    let zk = Locks::connect(&stores.to()).await.unwrap();
    until("the record is followed", async || {
        let guard = hold(&falls_back, "a").await;
        let is_on_both = zk.mutex("a").try_acquire().await.unwrap().is_none();
        guard.release().await.unwrap();
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
    let guard = hold(&pinned, "b").await;
    assert!(zk.mutex("b").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();

    // Without both there is nothing to start on.
    stores.redis.kill();
    stores.zk.kill();
    for options in ["", "&fallback=old", "&rung=old"] {
        must_help(&stores.open(options).await.unwrap_err(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn without_zookeeper_the_old_rungs_go_on_and_the_others_come_back() {
    let stores = Stores::start().await;
    let mut processes = Vec::new();
    for rung in ["old", "shadow", "dual", "move"] {
        let locks = stores.open(&format!("&rung={rung}")).await.unwrap();
        hold(&locks, &format!("{rung}-before")).await.release().await.unwrap();
        processes.push((rung, locks));
    }
    stores.zk.kill();
    for (rung, locks) in &processes {
        for name in [rung.to_string(), format!("{rung}-before")] {
            if matches!(*rung, "old" | "shadow") {
                hold(locks, &name).await.release().await.unwrap();
                continue;
            }
            let error = locks.mutex(&name).try_acquire_for(PATIENCE).await.unwrap_err();
            must_help(&error, ErrorKind::Unavailable);
            assert_eq!(error.lock().map(|lock| lock.as_str()), Some(&*name), "{error}");
        }
    }
    // Longer than the sessions.
    sleep(2 * SESSION).await;
    stores.zk.start_again().await.unwrap();
    for (rung, locks) in &processes {
        until("it comes back", async || match locks.mutex(*rung).try_acquire_for(PATIENCE).await {
            Ok(guard) => guard.expect("it is free").release().await.is_ok(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                false
            }
        })
        .await;
    }
}

#[tokio::test]
async fn after_the_seal_redis_may_be_gone() {
    let stores = Stores::start().await;
    let locks = stores.open("&rung=move").await.unwrap();
    hold(&locks, "a").await.release().await.unwrap();
    let mut record = stores.record().await;
    record.phase = Phase::Sealed;
    record.set(Rung::New, "*");
    stores.write(&record.to_bytes()).await;
    stores.redis.kill();
    for options in ["", "&rung=new", "&rung=dual", "&fallback=old"] {
        let late = stores.open(options).await.unwrap();
        for name in ["a", "b"] {
            let guard = hold(&late, name).await;
            assert!(locks.mutex(name).try_acquire().await.unwrap().is_none(), "both hold {name}");
            guard.release().await.unwrap();
        }
        assert!(late.inspect("a").await.unwrap().holders.is_empty());
        late.list("").await.unwrap();
        late.close().await.unwrap();
    }
}

/// The stores of a migration, with their options.
struct Stores {
    redis: RedisServer,
    zk: ZooKeeper,
}

impl Stores {
    async fn start() -> Self {
        Self::with(RedisServer::start().await.unwrap()).await
    }

    async fn with(redis: RedisServer) -> Self {
        Self { redis, zk: ZooKeeper::start().await.unwrap() }
    }

    fn from(&self) -> String {
        format!("{}?ttl=2s&connect_timeout=1s", self.redis.url())
    }

    fn to(&self) -> String {
        format!("{}?session=private&session_timeout={}s", self.zk.url(), SESSION.as_secs())
    }

    async fn open(&self, options: &str) -> polylock::Result<Locks> {
        Locks::connect(&migration_url("shop", &self.from(), &self.to(), options)).await
    }

    async fn zk(&self) -> Zk {
        Zk::connect(ZkConfig::from_url(&self.to()).unwrap()).await.unwrap()
    }

    async fn operator(&self) -> Operator {
        let redis: Arc<dyn Backend> =
            Arc::new(Redis::connect(RedisConfig::from_url(&self.from()).unwrap()).await.unwrap());
        Operator::connect("shop", redis, Arc::new(self.zk().await)).await.unwrap()
    }

    async fn record(&self) -> Record {
        let stored = self.zk().await.read_record().await.unwrap().unwrap();
        Record::parse(&stored, "shop").unwrap()
    }

    /// Writes the text of the record, whatever it is now.
    async fn write(&self, text: &[u8]) {
        let zk = self.zk().await;
        let version = zk.read_record().await.unwrap().map(|stored| stored.version);
        assert!(zk.write_record(text, version).await.unwrap(), "somebody else writes it");
    }
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await;
    guard.unwrap_or_else(|error| panic!("{error}")).unwrap_or_else(|| panic!("{name} is busy"))
}

/// The error of a URL, which takes no server.
async fn refused(url: &str, kind: ErrorKind, says: &str) {
    let shown = url.replace(SECRET, "...");
    for error in [
        Locks::connect(url).await.map(drop).expect_err(&shown),
        Locks::connect_lazy(url).map(drop).expect_err(&shown),
    ] {
        must_help(&error, kind);
        assert!(!error.is_retryable(), "trying again does not help: {error}");
        assert!(error.to_string().contains(says), "{shown} does not say {says:?}: {error}");
    }
}

fn must_help(error: &Error, kind: ErrorKind) {
    hides_the_secret(error);
    let text = error.to_string();
    assert!(!text.contains(SECRET), "the text shows a password: {text}");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(text.contains("; "), "the text names no way out: {text}");
    assert!(!text.contains('\n'), "the text has more than one line: {text}");
}

fn hides_the_secret(shown: &impl Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(SECRET), "shows the password: {text}");
    }
}
