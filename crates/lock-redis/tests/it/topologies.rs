//! Locks over every way to reach a Redis server.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lock_core::{ErrorKind, Guard, GuardState, LockName, Locks, LossReason, Outcome, Result};
use lock_redis::redis::aio::{AsyncPushSender, MultiplexedConnection, PubSub};
use lock_redis::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult,
};
use lock_redis::{Connection, Dial, RedisConfig};
use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{
    FaultProxy, RedisCluster, RedisSentinel, RedisServer, acquiring, cancel_after, come, for_each_poll_count,
    give_back, until,
};
use redis_link::client::{ClientOptions, RedisClient};
use redis_link::keys::Keys;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

const SECRET: &str = "s3cret-Pa55";
const PATIENCE: Duration = Duration::from_secs(30);
/// The recipes, by their options.
const RECIPES: [&str; 2] = ["recipe=set-nx-px", "recipe=setnx-timestamp&clock_skew=50ms"];

async fn connect(url: &str) -> Result<Locks> {
    RedisConfig::from_url(url)?.connect().await
}

/// Takes a lock, sees that it excludes, releases it, and takes it when somebody waits.
async fn works(url: &str) {
    let (ours, theirs) = (connect(url).await.unwrap(), connect(url).await.unwrap());
    let guard = ours.mutex("a").acquire().await.unwrap();
    assert!(theirs.mutex("a").try_acquire().await.unwrap().is_none());
    let waiter = acquiring(theirs.mutex("a"));
    while ours.inspect("a").await.unwrap().waiters == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    let token = guard.token();
    give_back(guard).await;
    let next = come(waiter).await;
    assert!(next.token() > token);
    give_back(next).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn unix_sockets() {
    let server = RedisServer::builder().unix_socket().start().await.unwrap();
    let path = server.socket().display().to_string();
    works(&format!("redis+unix://{path}")).await;
    let locks = connect(&format!("redis+unix://{path}?db=3")).await.unwrap();
    let guard = locks.mutex("in3").acquire().await.unwrap();
    let keyspace = server.command(&["INFO", "keyspace"]).await.unwrap();
    assert!(keyspace.text().unwrap().contains("db3:"), "{keyspace:?}");
    guard.release().await.unwrap();
    let error = connect("redis+unix:///no/such/socket").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("/no/such/socket"), "{error}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn databases_are_apart() {
    let server = RedisServer::start().await.unwrap();
    works(&format!("{}/5", server.url())).await;
    let (five, six) = (format!("{}/5", server.url()), format!("{}/6", server.url()));
    let (five, six) = (connect(&five).await.unwrap(), connect(&six).await.unwrap());
    let held = five.mutex("a").acquire().await.unwrap();
    six.mutex("a").try_acquire().await.unwrap().expect("another database").release().await.unwrap();
    held.release().await.unwrap();
    let error = connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert!(error.to_string().contains("database") || error.to_string().contains("DB"), "{error}");
}

/// Acquires in spite of an outage: by asking again for as long as the error says that it may help.
async fn acquire_in_the_end(locks: &Locks, name: &str) -> Guard {
    let start = Instant::now();
    loop {
        match locks.mutex(name).acquire().await {
            Ok(guard) => return guard,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(start.elapsed() < PATIENCE, "{error}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_name_the_master() {
    let sentinel = RedisSentinel::start().await.unwrap();
    works(&sentinel.url()).await;
    // One that is down costs nothing.
    sentinel.sentinels()[0].kill();
    works(&sentinel.url()).await;

    let unknown = sentinel.url().replace(RedisSentinel::NAME, "another");
    let error = connect(&unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("\"another\""), "{error}");
    let direct = connect(&sentinel.sentinels()[1].url()).await.unwrap_err();
    assert_eq!(direct.kind(), ErrorKind::InvalidConfig);
    assert!(direct.to_string().contains("redis+sentinel://"), "{direct}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn locks_go_on_after_the_master_died() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=5s", sentinel.url())).await.unwrap();
    let (held, before) =
        (locks.mutex("held").acquire().await.unwrap(), locks.mutex("b").acquire().await.unwrap());
    let last = before.token();
    before.release().await.unwrap();
    // Written after the release.
    let last_write = locks.mutex("last").acquire().await.unwrap();
    until_replicated(&sentinel, "last").await;
    drop(last_write);

    sentinel.servers()[0].kill();
    let after = acquire_in_the_end(&locks, "b").await;
    assert!(after.token() > last, "{:?} after {last:?}", after.token());
    after.release().await.unwrap();
    // The lock that was held is on the new master, and renewed there, unless the failover took longer than it
    // lasted.
    let until = held.valid_until();
    sleep(Duration::from_secs(6)).await;
    match held.state() {
        GuardState::Valid => assert!(held.valid_until() > until),
        _ => assert!(lock_core::Clock::boot().now() >= held.valid_until()),
    }
    let last = held.token();
    drop(held);
    let next = timeout(PATIENCE, locks.mutex("held").acquire()).await.unwrap().unwrap();
    assert!(next.token() > last);
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_failover_on_command_is_followed() {
    tokio::join!(follows_a_failover(RECIPES[0]), follows_a_failover(RECIPES[1]));
}

async fn follows_a_failover(recipe: &str) {
    let sentinel = RedisSentinel::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=24s&{recipe}", sentinel.url())).await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    until_replicated(&sentinel, "held").await;
    let failover = ["SENTINEL", "FAILOVER", RedisSentinel::NAME];
    let answer = sentinel.sentinels()[0].command(&failover).await.unwrap();
    assert_eq!(answer.text(), Some("OK"), "{answer:?}");
    until("no failover", async || sentinel.servers()[0].role().await.as_deref() == Some("slave")).await;
    acquire_in_the_end(&locks, "b").await.release().await.unwrap();
    // The old master goes on granting for up to eight seconds, and what is written there is lost. The sentinels
    // announce the new one long before: the lock is renewed there before it ends, also on a busy host.
    sleep(Duration::from_secs(24)).await;
    assert_eq!(held.state(), GuardState::Valid);
    give_back(held).await;
    assert!(!sentinel.servers()[1].has_key("lock:held").await);
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn an_announced_master_takes_precedence_over_the_old_one() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    // The old one takes itself for a master still, and so does the sentinel that is asked.
    let sentinel = pretend_sentinel(Arc::new(AtomicU16::new(old.port())), Some(new.port())).await;
    let locks = connect(&format!("redis+sentinel://{sentinel}/main")).await.unwrap();
    come_to(&new, &locks).await;
}

/// Waits until the replica has this lock: what it has not yet got is lost with the master.
async fn until_replicated(sentinel: &RedisSentinel, name: &str) {
    let key = format!("lock:{name}");
    until("the lock is not replicated", async || sentinel.servers()[1].has_key(&key).await).await;
}

/// Waits until the locks are taken at this server.
async fn come_to(new: &RedisServer, locks: &Locks) {
    until("still at the old master", async || {
        let guard = locks.mutex("a").acquire().await.unwrap();
        let is_there = new.has_key("lock:a").await;
        guard.release().await.unwrap();
        is_there
    })
    .await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_failover_without_an_announcement_is_followed() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    // The old one takes itself for a master still, and the connection to it stays.
    let master = Arc::new(AtomicU16::new(old.port()));
    let sentinel = pretend_sentinel(Arc::clone(&master), None).await;
    let locks = connect(&format!("redis+sentinel://{sentinel}/main")).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    // As one that was not subscribed to at that moment.
    master.store(new.port(), Ordering::Relaxed);
    come_to(&new, &locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_are_followed_also_when_the_runtime_that_did_has_ended() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let master = Arc::new(AtomicU16::new(old.port()));
    let sentinel = pretend_sentinel(Arc::clone(&master), None).await;
    let locks = spawn_blocking(move || {
        let ends = Builder::new_current_thread().enable_all().build().unwrap();
        ends.block_on(connect(&format!("redis+sentinel://{sentinel}/main"))).unwrap()
    });
    let locks = locks.await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    master.store(new.port(), Ordering::Relaxed);
    come_to(&new, &locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_are_followed_also_when_only_the_runtime_that_did_has_ended() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let master = Arc::new(AtomicU16::new(old.port()));
    let sentinel = pretend_sentinel(Arc::clone(&master), None).await;
    let first = spawn_blocking(move || {
        let ends = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let locks = ends.block_on(connect(&format!("redis+sentinel://{sentinel}/main"))).unwrap();
        (ends, locks)
    });
    let (ends, locks) = first.await.unwrap();
    // The connection is made anew by this runtime, while the first one still follows.
    old.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    acquire_in_the_end(&locks, "a").await.release().await.unwrap();
    ends.shutdown_background();
    master.store(new.port(), Ordering::Relaxed);
    come_to(&new, &locks).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_is_announced_while_the_old_one_is_dialed_is_the_one() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let slow = FaultProxy::start(old.addr(), Protocol::Redis).unwrap();
    slow.delay(Direction::ToClient, Duration::from_millis(500));
    let sentinel = pretend_sentinel(Arc::new(AtomicU16::new(slow.port())), Some(new.port())).await;
    let locks = connect(&format!("redis+sentinel://{sentinel}/main?connect_timeout=20s")).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(new.has_key("lock:a").await);
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_sentinel_that_hangs_is_left_for_another() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let _locks = connect(&sentinel.url()).await.unwrap();
    let is_followed = async |number: usize| {
        let clients = sentinel.sentinels()[number].command(&["CLIENT", "LIST"]).await.unwrap();
        clients.text().unwrap().contains("cmd=subscribe")
    };
    let begins = async |number: usize| {
        until(&format!("sentinel {number} is not followed"), async || is_followed(number).await).await;
    };
    begins(0).await;
    assert!(!is_followed(1).await);
    sentinel.sentinels()[0].stop();
    begins(1).await;
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
        sentinels.push(pretend_sentinel(names, Some(works.port())).await.to_string());
    }
    sentinels.push("127.0.0.1:1".to_owned());
    let url = format!("redis+sentinel://{}/main?connect_timeout=4s", sentinels.join(","));
    let locks = connect(&url).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(works.has_key("lock:a").await);
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_becomes_a_replica_is_reported_and_retried() {
    let (server, other) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let locks = connect(&server.url()).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("replica"), "{error}");
    let error = connect(&server.url()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("replica"), "{error}");
    server.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

/// Leads to whichever server the name stands for now, as a record of a name server does.
#[derive(Debug)]
struct Record {
    points_to: Mutex<ConnectionInfo>,
}

impl Record {
    fn of(server: &RedisServer) -> Arc<Self> {
        Arc::new(Self { points_to: Mutex::new(address(server)) })
    }

    fn moves_to(&self, server: &RedisServer) {
        *self.points_to.lock().unwrap() = address(server);
    }

    /// A client that connects by this name.
    async fn connect(self: &Arc<Self>, url: &str) -> Locks {
        RedisConfig::from_url(url).unwrap().dial(Arc::clone(self) as _).connect().await.unwrap()
    }
}

fn address(server: &RedisServer) -> ConnectionInfo {
    server.url().into_connection_info().unwrap()
}

#[async_trait]
impl Dial for Record {
    async fn commands(&self, _: &ConnectionInfo) -> RedisResult<Connection> {
        let to = self.points_to.lock().unwrap().clone();
        Ok(Client::open(to)?.get_multiplexed_async_connection().await?.into())
    }

    async fn pushes(
        &self,
        _: &ConnectionInfo,
        sender: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        let to = self.points_to.lock().unwrap().clone();
        pushes(&to, sender).await
    }

    async fn messages(&self, _: &ConnectionInfo) -> RedisResult<PubSub> {
        let to = self.points_to.lock().unwrap().clone();
        Client::open(to)?.get_async_pubsub().await
    }
}

async fn pushes(to: &ConnectionInfo, sender: Arc<dyn AsyncPushSender>) -> RedisResult<MultiplexedConnection> {
    let settings = to.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let client = Client::open(to.clone().set_redis_settings(settings))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Whoever is connected stays with the old server, as long as it lives.
#[tokio::test]
async fn a_name_that_moves_while_the_old_server_lives_has_two_holders() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let client = async || record.connect(&format!("{}?ttl=1s", old.url())).await;
    let before = client().await;
    let first = before.mutex("a").acquire().await.unwrap();
    record.moves_to(&new);
    let second = client().await.mutex("a").acquire().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert!(first.is_valid() && second.is_valid(), "each is renewed at its server");

    // This is why the old server has to end before the name moves.
    old.kill();
    assert!(timeout(PATIENCE, first.lost()).await.is_ok());
    assert!(second.is_valid());
    assert!(before.mutex("a").try_acquire().await.unwrap().is_none(), "it connects by the name");
    give_back(second).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_is_demoted_is_left_for_the_new_one() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let locks = record.connect(&old.url()).await;
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    // The connection stays, and is of no use any more.
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await.unwrap();
    record.moves_to(&new);
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(new.has_key("lock:a").await);
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_waiter_is_subscribed_at_the_new_master() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let locks = record.connect(&old.url()).await;
    for server in [&old, &new] {
        server.call(&["SET", "lock:a", "theirs", "PX", "60000"]).await;
    }
    let waits = |locks: &Locks| {
        let mutex = locks.mutex("a");
        tokio::spawn(async move { mutex.acquire().await.unwrap() })
    };
    let are_heard = async |server: &RedisServer, wanted: i64| {
        let start = Instant::now();
        loop {
            let queued = server.command(&["LLEN", "polylock:queue:{lock:a}"]).await.unwrap().int();
            let heard = server.command(&["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await.unwrap();
            let heard = heard.array().unwrap().len();
            if queued == Some(wanted) && i64::try_from(heard) == Ok(wanted) {
                break;
            }
            assert!(start.elapsed() < PATIENCE / 3, "{queued:?} stand in the queue, and {heard} are heard");
            sleep(Duration::from_millis(20)).await;
        }
    };
    let waiter = waits(&locks);
    are_heard(&old, 1).await;
    // Its connections stay, and are of no use any more.
    old.call(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).await;
    record.moves_to(&new);
    are_heard(&new, 1).await;
    let other = connect(&new.url()).await.unwrap();
    let behind = waits(&other);
    are_heard(&new, 2).await;
    assert!(locks.break_lock("a").await.unwrap());
    let first = come(waiter).await;
    assert!(!behind.is_finished());
    give_back(first).await;
    come(behind).await.release().await.unwrap();
}

/// A name whose lock is on this master of the cluster.
async fn name_on(cluster: &RedisCluster, master: usize) -> String {
    name_on_but(cluster, master, "").await
}

/// A cluster, a name whose lock is on its first master, and its slot.
async fn cluster_with_a_name() -> (RedisCluster, String, u16) {
    let cluster = RedisCluster::start().await.unwrap();
    let name = name_on(&cluster, 0).await;
    let slot = cluster.slot(&format!("lock:{name}")).await.unwrap();
    (cluster, name, slot)
}

/// Another name than this one.
async fn name_on_but(cluster: &RedisCluster, master: usize, but: &str) -> String {
    for number in 0.. {
        let name = format!("name{number}");
        let slot = usize::from(cluster.slot(&format!("lock:{name}")).await.unwrap());
        if slot / 5462 == master && name != but {
            return name;
        }
    }
    unreachable!("there are names in every slot")
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_cluster_has_locks_on_every_master() {
    let cluster = RedisCluster::start().await.unwrap();
    // One node is enough to find the others.
    let (url, one) = (cluster.url(), format!("redis+cluster://{}", cluster.masters()[2].addr()));
    let (ours, theirs) = (connect(&url).await.unwrap(), connect(&one).await.unwrap());
    let mut guards = Vec::new();
    for (at, master) in cluster.masters().iter().enumerate() {
        let name = name_on(&cluster, at).await;
        let guard = ours.mutex(&name).acquire().await.unwrap();
        assert!(theirs.mutex(&name).try_acquire().await.unwrap().is_none());
        assert!(master.has_key(&format!("lock:{name}")).await, "{name}");
        guards.push((name, guard));
    }
    let mut names: Vec<_> = guards.iter().map(|(name, _)| name.clone()).collect();
    names.sort_unstable();
    let listed = theirs.list("").await.unwrap();
    assert_eq!(listed.iter().map(ToString::to_string).collect::<Vec<_>>(), names);
    for (name, guard) in guards {
        let (token, waiter) = (guard.token(), acquiring(theirs.mutex(&name)));
        sleep(Duration::from_millis(50)).await;
        give_back(guard).await;
        let next = come(waiter).await;
        assert!(next.token() > token);
        assert!(theirs.inspect(&name).await.unwrap().is_held());
        assert!(!theirs.break_lock_if(&name, token).await.unwrap(), "it has given the lock back");
        assert!(theirs.break_lock_if(&name, next.token()).await.unwrap());
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn names_whose_helpers_would_be_elsewhere_are_refused_in_a_cluster() {
    let cluster = RedisCluster::start().await.unwrap();
    let locks = connect(&cluster.url()).await.unwrap();
    for name in ["a}b", "{}a", "a{}b"] {
        for error in [
            locks.mutex(name).acquire().await.map(drop).unwrap_err(),
            locks.inspect(name).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
            assert!(error.to_string().contains("slot") && error.to_string().contains("{orders}"), "{error}");
        }
    }
    for name in ["{a}b", "a{b}c", "{{a}}", "a{b"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
}

/// A server that has all slots is reached by a URL of one server, too.
#[tokio::test]
async fn names_whose_helpers_would_be_elsewhere_are_refused_by_any_server_in_cluster_mode() {
    let cluster = RedisCluster::start_n(1, false).await.unwrap();
    let server = &cluster.masters()[0];
    for recipe in RECIPES {
        let locks = connect(&format!("{}?{recipe}", server.url())).await.unwrap();
        // From now on a free lock is acquired without a script.
        for _ in 0..2 {
            give_back(locks.mutex("{a}b").acquire().await.unwrap()).await;
        }
        for name in ["a}b", "{}a", "a{}b"] {
            let error = locks.mutex(name).try_acquire().await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
            assert!(error.to_string().contains("slot") && error.to_string().contains("{orders}"), "{error}");
            assert!(!server.has_key(&format!("lock:{name}")).await, "{recipe}: nothing is left");
        }
        locks.close().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn in_a_cluster_the_queue_is_kept_through_the_move_of_its_slot() {
    if RedisServer::lacks("sharded channels", (7, 0)) {
        return;
    }
    let (cluster, name, slot) = cluster_with_a_name().await;
    let queue = format!("polylock:queue:{{lock:{name}}}");
    let waiting = async |node: usize| {
        cluster.masters()[node].command(&["LLEN", &queue]).await.unwrap().int().unwrap_or_default()
    };
    let holder = connect(&cluster.url()).await.unwrap();
    let guard = holder.mutex(&name).acquire().await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..3 {
        let (locks, name, sender) = (connect(&cluster.url()).await.unwrap(), name.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = locks.mutex(&name).acquire().await.unwrap();
            sender.send(number).unwrap();
            guard.release().await.unwrap();
        });
        until(&format!("waiter {number} does not stand in the queue"), async || waiting(0).await > number)
            .await;
    }
    assert_eq!(holder.inspect(&name).await.unwrap().waiters, 3);
    let channels = cluster.masters()[0].command(&["PUBSUB", "SHARDCHANNELS"]).await.unwrap();
    assert_eq!(channels.array().unwrap().len(), 3, "the waiter subscribes at the node that has the lock");
    migrate(&cluster, slot, 0, 1, Duration::ZERO).await;
    // They come again by themselves, at the other node, and to the places that they had.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(waiting(1).await, 3);
    give_back(guard).await;
    for number in 0..3 {
        assert_eq!(timeout(PATIENCE, order.recv()).await.unwrap(), Some(number));
    }
}

/// Lets nobody listen before it is open.
#[derive(Debug)]
struct Gate {
    open: watch::Sender<bool>,
}

#[async_trait]
impl Dial for Gate {
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        Ok(Client::open(to.clone())?.get_multiplexed_async_connection().await?.into())
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        sender: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        pushes(to, sender).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        Client::open(to.clone())?.get_async_pubsub().await
    }
}

/// The channel is refused by a node that has it no more, and is available there again later.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn in_a_cluster_a_refused_channel_is_subscribed_once_its_slot_is_back() {
    if RedisServer::lacks("sharded channels", (7, 0)) {
        return;
    }
    let (cluster, name, slot) = cluster_with_a_name().await;
    let guard = connect(&cluster.url()).await.unwrap().mutex(&name).acquire().await.unwrap();
    let gate = Arc::new(Gate { open: watch::Sender::new(false) });
    let config = RedisConfig::from_url(&cluster.url()).unwrap();
    let waits = config.dial(Arc::clone(&gate) as _).connect().await.unwrap();
    let waiter = acquiring(waits.mutex(&name));
    until("nobody is about to listen", async || gate.open.receiver_count() > 0).await;
    migrate(&cluster, slot, 0, 1, Duration::ZERO).await;
    gate.open.send_replace(true);
    let is_heard_at = async |node: usize| {
        let channels = async || cluster.masters()[node].call(&["PUBSUB", "SHARDCHANNELS"]).await;
        until("nobody listens at the node", async || !channels().await.array().unwrap().is_empty()).await;
    };
    is_heard_at(1).await;
    migrate(&cluster, slot, 1, 0, Duration::ZERO).await;
    is_heard_at(0).await;
    give_back(guard).await;
    let next = come(waiter).await;
    give_back(next).await;
}

/// Moves a slot, key by key, with a pause before each step.
async fn migrate(cluster: &RedisCluster, slot: u16, from: usize, to: usize, pause: Duration) {
    begin_to_migrate(cluster, slot, from, to).await;
    let all = cluster.masters();
    let (slot, to_id) = (slot.to_string(), cluster.id(&all[to]).await.unwrap());
    loop {
        sleep(pause).await;
        let keys = all[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).await.unwrap();
        let Some(key) = keys.array().and_then(|keys| keys.first()) else { break };
        move_key(cluster, from, to, key.text().unwrap()).await;
    }
    for node in [&all[to], &all[from]].into_iter().chain(all) {
        node.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
}

async fn move_key(cluster: &RedisCluster, from: usize, to: usize, key: &str) {
    let port = cluster.masters()[to].port().to_string();
    let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
    cluster.masters()[from].call(&migrate).await;
}

/// Has a slot move of which no key has moved yet.
async fn begin_to_migrate(cluster: &RedisCluster, slot: u16, from: usize, to: usize) {
    let (from, to, slot) = (&cluster.masters()[from], &cluster.masters()[to], slot.to_string());
    let (from_id, to_id) = (cluster.id(from).await.unwrap(), cluster.id(to).await.unwrap());
    to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
    from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_survives_the_migration_of_its_slot() {
    tokio::join!(survives_migration(RECIPES[0]), survives_migration(RECIPES[1]));
}

async fn survives_migration(recipe: &str) {
    let (cluster, name, slot) = cluster_with_a_name().await;
    let locks = connect(&format!("{}?ttl=3s&{recipe}", cluster.url())).await.unwrap();
    let guard = locks.mutex(&name).acquire().await.unwrap();
    // Together the pauses, one more than there are keys, are longer than the lock would last without a renewal.
    let pause = if recipe == RECIPES[0] { 1500 } else { 900 };
    migrate(&cluster, slot, 0, 1, Duration::from_millis(pause)).await;
    assert_eq!(guard.state(), GuardState::Valid);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(guard.state(), GuardState::Valid);
    assert!(cluster.masters()[1].has_key(&format!("lock:{name}")).await);
    let token = guard.token();
    give_back(guard).await;
    let next = locks.mutex(&name).acquire().await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    // And back, while nobody holds it: the first request goes to the wrong node.
    migrate(&cluster, slot, 1, 0, Duration::ZERO).await;
    locks.mutex(&name).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn while_a_slot_moves_new_locks_in_it_are_to_be_tried_again() {
    let cluster = RedisCluster::start().await.unwrap();
    let slot = cluster.slot("tag").await.unwrap();
    let from = usize::from(slot) / 5462;
    let locks = connect(&format!("{}?command_timeout=300ms", cluster.url())).await.unwrap();
    let patient = connect(&format!("{}?command_timeout=20s", cluster.url())).await.unwrap();
    let held = locks.mutex("{tag}/held").acquire().await.unwrap();
    let older = connect(&format!("{}?command_timeout=300ms&{}", cluster.url(), RECIPES[1])).await.unwrap();
    let old = older.mutex("{tag}/old").acquire().await.unwrap();
    let moving = migrate(&cluster, slot, from, (from + 1) % 3, Duration::from_millis(1500));
    let taking = async {
        sleep(Duration::from_millis(500)).await;
        // The cluster takes no request for several keys of which some are missing.
        let error = locks.mutex("{tag}/new").acquire().await.unwrap_err();
        let what = (error.kind(), error.outcome());
        assert_eq!(what, (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
        assert!(error.to_string().contains("TRYAGAIN"), "{error}");
        // None is missing here.
        give_back(old).await;
        // With time enough it is waited for.
        patient.mutex("{tag}/new").acquire().await.unwrap()
    };
    let ((), new) = tokio::join!(moving, taking);
    give_back(new).await;
    give_back(held).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_downgrade_that_fails_while_its_slot_moves_gives_nothing_up() {
    const TTL: Duration = Duration::from_millis(2500);
    let (cluster, name, slot) = cluster_with_a_name().await;
    let options = format!("ttl={}ms&command_timeout=300ms", TTL.as_millis());
    let locks = connect(&format!("{}?{options}", cluster.url())).await.unwrap();
    let mut writer = locks.rw(&name).write().await.unwrap();
    begin_to_migrate(&cluster, slot, 0, 1).await;
    // Given up, and then answered: the keys of waiters and of those who share are not there.
    assert!(cancel_after(1, writer.downgrade()).await.is_none());
    let error = writer.downgrade().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("TRYAGAIN"), "{error}");
    // The keys of a writer are: it is renewed.
    sleep(2 * TTL).await;
    assert_eq!(writer.state(), GuardState::Valid);

    migrate(&cluster, slot, 0, 1, Duration::ZERO).await;
    writer.downgrade().await.unwrap();
    let other = connect(&cluster.url()).await.unwrap();
    let reader = timeout(PATIENCE, other.rw(&name).read()).await.unwrap().unwrap();
    sleep(TTL).await;
    for guard in [writer, reader] {
        give_back(guard).await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_whose_keys_are_apart_holds_up_no_renewal_of_another() {
    let (cluster, name, slot) = cluster_with_a_name().await;
    let neighbour = name_on_but(&cluster, 0, &name).await;
    // Any wait for the keys to come together takes longer than the lease.
    let locks = connect(&format!("{}?ttl=1s&command_timeout=3s", cluster.url())).await.unwrap();
    let apart = locks.mutex(&name).acquire().await.unwrap();
    let other = locks.mutex(&neighbour).acquire().await.unwrap();
    begin_to_migrate(&cluster, slot, 0, 1).await;
    move_key(&cluster, 0, 1, &format!("polylock:tokens:{{lock:{name}}}")).await;

    sleep(Duration::from_secs(5)).await;
    assert!(matches!(apart.state(), GuardState::Lost(_)), "its renewals were refused");
    assert_eq!(other.state(), GuardState::Valid);
    give_back(other).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_hangs_holds_up_no_renewal_at_another() {
    let cluster = RedisCluster::start().await.unwrap();
    for master in cluster.masters() {
        // So that the others go on without it.
        master.call(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let locks = connect(&format!("{}?ttl=2s", cluster.url())).await.unwrap();
    let mut guards = Vec::new();
    for master in 0..3 {
        let name = name_on(&cluster, master).await;
        guards.push(locks.mutex(name).acquire().await.unwrap());
    }
    cluster.masters()[0].stop();
    sleep(Duration::from_secs(8)).await;
    cluster.masters()[0].cont();
    let standings: Vec<_> = guards.iter().map(Guard::state).collect();
    assert_eq!(standings[1..], [GuardState::Valid, GuardState::Valid], "{standings:?}");
    assert!(matches!(standings[0], GuardState::Lost(_)));
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn locks_go_on_after_a_master_of_the_cluster_died() {
    let cluster = RedisCluster::start_n(3, true).await.unwrap();
    let name = name_on(&cluster, 1).await;
    let locks = connect(&cluster.url()).await.unwrap();
    let guard = locks.mutex(&name).acquire().await.unwrap();
    let token = guard.token();
    guard.release().await.unwrap();
    sleep(Duration::from_millis(200)).await;
    cluster.masters()[1].kill();
    let next = acquire_in_the_end(&locks, &name).await;
    assert!(next.token() > token);
    assert!(cluster.replicas()[1].has_key(&format!("lock:{name}")).await);
    // The others have not noticed.
    let elsewhere = name_on(&cluster, 0).await;
    locks.mutex(elsewhere).acquire().await.unwrap().release().await.unwrap();
    give_back(next).await;
}

/// A call is sent again until a node can run it, or until the command timeout.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_cluster_that_is_down_for_a_moment_is_waited_for() {
    let cluster = RedisCluster::start().await.unwrap();
    let locks = connect(&format!("{}?command_timeout=10s", cluster.url())).await.unwrap();
    let name = name_on(&cluster, 0).await;
    locks.mutex(&name).acquire().await.unwrap().release().await.unwrap();
    let slot = cluster.slot(&format!("lock:{name}")).await.unwrap().to_string();
    let master = &cluster.masters()[0];
    master.call(&["CLUSTER", "DELSLOTS", &slot]).await;
    assert!(answer_of(master, &["GET", &format!("lock:{name}")]).await.contains("CLUSTERDOWN"));
    let mutex = locks.mutex(&name);
    let mut waits = pin!(mutex.acquire());
    assert!(
        timeout(Duration::from_millis(500), &mut waits).await.is_err(),
        "it gives up, or the cluster is up"
    );
    master.call(&["CLUSTER", "ADDSLOTS", &slot]).await;
    let guard = timeout(PATIENCE, waits).await.unwrap().unwrap();
    give_back(guard).await;
}

/// It answers that the cluster is down, and knows nothing of who has its slots now.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_is_cut_off_from_the_cluster_is_left() {
    if RedisServer::version().starts_with("Valkey") {
        return RedisServer::leave_out("node that forgets others without telling them so, at once");
    }
    let cluster = RedisCluster::start_n(3, true).await.unwrap();
    let name = name_on(&cluster, 0).await;
    let url = format!("{}?ttl=24s", cluster.url());
    let door = Arc::new(Door::default());
    let theirs = RedisConfig::from_url(&url).unwrap().dial(door.dial());
    let (ours, theirs) = (connect(&url).await.unwrap(), theirs.connect().await.unwrap());
    let held = ours.mutex(&name).acquire().await.unwrap();
    let other = name_on_but(&cluster, 0, &name).await;
    theirs.mutex(&other).acquire().await.unwrap().release().await.unwrap();
    let (master, replica) = (&cluster.masters()[0], &cluster.replicas()[0]);
    // What a replica has not yet got is lost with the master; that is not what is tried here.
    sleep(Duration::from_millis(200)).await;
    // All at once: since 7.2 a node tells those that it knows whom it forgets.
    let mut ids = Vec::new();
    for node in cluster.masters()[1..].iter().chain(cluster.replicas()) {
        ids.push(cluster.id(node).await.unwrap());
    }
    let forget = ["EVAL", "for _, id in ipairs(ARGV) do redis.call('CLUSTER', 'FORGET', id) end", "0"];
    let ids: Vec<_> = forget.into_iter().chain(ids.iter().map(String::as_str)).collect();
    assert!(!master.command(&ids).await.unwrap().is_error());
    replica.call(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    until("it still treats the server as a cluster", async || {
        answer_of(master, &["GET", "lock:a"]).await.contains("CLUSTERDOWN")
    })
    .await;
    // Its map is read first.
    door.prefers.store(master.port(), Ordering::Relaxed);
    let guard = acquire_in_the_end(&theirs, &other).await;
    assert!(replica.has_key(&format!("lock:{other}")).await);
    give_back(guard).await;
    let until = held.valid_until();
    let renewed = timeout(PATIENCE, async {
        while held.valid_until() <= until && held.state() != GuardState::Lost(LossReason::DeadlinePassed) {
            sleep(Duration::from_millis(50)).await;
        }
    });
    renewed.await.unwrap();
    assert_eq!(held.state(), GuardState::Valid);
    give_back(held).await;
}

async fn answer_of(server: &RedisServer, command: &[&str]) -> String {
    format!("{:?}", server.command(command).await.unwrap())
}

/// Lets nobody in while it is shut.
#[derive(Debug, Default)]
struct Door {
    is_shut: AtomicBool,
    knocks: AtomicUsize,
    /// The port of a server to which all others are second.
    prefers: AtomicU16,
}

impl Door {
    async fn commands(&self, to: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        self.knocks.fetch_add(1, Ordering::Relaxed);
        if self.is_shut.load(Ordering::Relaxed) {
            return Err((redis::ErrorKind::Io, "shut").into());
        }
        let preferred = self.prefers.load(Ordering::Relaxed);
        if preferred != 0 && !to.addr().to_string().ends_with(&format!(":{preferred}")) {
            sleep(Duration::from_millis(200)).await;
        }
        Client::open(to)?.get_multiplexed_async_connection().await
    }

    fn dial(self: &Arc<Self>) -> Arc<dyn Dial> {
        let door = Arc::clone(self);
        Arc::new(By(move |to| {
            let door = Arc::clone(&door);
            async move { door.commands(to).await }.boxed()
        }))
    }
}

/// Makes the connections for commands in this way, and the others as usual.
struct By<F>(F);

impl<F> std::fmt::Debug for By<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("By")
    }
}

#[async_trait]
impl<F> Dial for By<F>
where
    F: Fn(ConnectionInfo) -> BoxFuture<'static, RedisResult<MultiplexedConnection>> + Send + Sync + 'static,
{
    async fn commands(&self, to: &ConnectionInfo) -> RedisResult<Connection> {
        Ok((self.0)(to.clone()).await?.into())
    }

    async fn pushes(
        &self,
        to: &ConnectionInfo,
        sender: Arc<dyn AsyncPushSender>,
    ) -> RedisResult<MultiplexedConnection> {
        pushes(to, sender).await
    }

    async fn messages(&self, to: &ConnectionInfo) -> RedisResult<PubSub> {
        Client::open(to.clone())?.get_async_pubsub().await
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_part_of_a_cluster_is_found_beside_a_node_that_hangs() {
    let cluster = RedisCluster::start().await.unwrap();
    let (master, hangs) = (&cluster.masters()[0], RedisServer::start().await.unwrap());
    cluster.masters()[1..].iter().for_each(RedisServer::kill);
    hangs.stop();
    until("it still treats the server as a cluster", async || {
        master.command(&["CLUSTER", "INFO"]).await.unwrap().text().unwrap().contains("cluster_state:fail")
    })
    .await;
    for _ in 0..5 {
        connect(&format!("redis+cluster://{},{}?wait=poll", hangs.addr(), master.addr())).await.unwrap();
    }
    hangs.cont();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn acquisitions_that_were_refused_while_they_connected_leave_nothing_to_do() {
    let server = RedisServer::builder().password("one").start().await.unwrap();
    let door = Arc::new(Door::default());
    let config = RedisConfig::from_url(&format!("{}?wait=poll", server.url())).unwrap();
    let locks = config.dial(door.dial()).connect().await.unwrap();
    server.call(&["CONFIG", "SET", "requirepass", "two"]).await;
    // The harness has the old password only.
    let other = Client::open(server.url().replace("one", "two")).unwrap();
    let mut other = other.get_multiplexed_async_connection().await.unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").query_async::<i64>(&mut other).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while locks.inspect("a").await.map_or_else(|error| error.kind(), |_| ErrorKind::Unavailable)
        != ErrorKind::Denied
    {
        assert!(Instant::now() < deadline, "the password is not asked for");
    }
    for number in 0..20 {
        let error = locks.mutex(format!("denied{number}")).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let knocks = door.knocks.load(Ordering::Relaxed);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(door.knocks.load(Ordering::Relaxed), knocks);
}

/// The second connection makes the runtime stand still while it is greeted, and the third leads elsewhere.
fn stalls(slow: u16, then: u16) -> Arc<dyn Dial> {
    let dials = AtomicUsize::new(0);
    Arc::new(By(move |to: ConnectionInfo| {
        let number = dials.fetch_add(1, Ordering::SeqCst);
        let port = if number == 1 { slow } else { then };
        async move {
            let to = if number == 0 { to } else { ("127.0.0.1", port).into_connection_info()? };
            let made = Client::open(to)?.get_multiplexed_async_connection().await;
            if number == 1 {
                drop(tokio::spawn(async {
                    // The greeting has left by then.
                    sleep(Duration::from_millis(50)).await;
                    std::thread::sleep(Duration::from_secs(4));
                }));
            }
            made
        }
        .boxed()
    }))
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_connection_whose_making_stood_still_replaces_none() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let slow = FaultProxy::start(old.addr(), Protocol::Redis).unwrap();
    slow.delay(Direction::ToClient, Duration::from_millis(200));
    let mut options = ClientOptions::new("test", &[], old.url().into_connection_info().unwrap());
    options.dial = Some(stalls(slow.port(), new.port()));
    options.asks_identity = true;
    let server = Arc::new(RedisClient::new(options).unwrap());
    server.connect().await.unwrap();
    let first = server.identity().unwrap();
    old.command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    while server.time().await.is_ok() {}
    let stalled = Arc::clone(&server);
    let stalled = spawn_blocking(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            drop(stalled.connect().await);
            // For what it began.
            sleep(Duration::from_secs(1)).await;
        });
    });
    sleep(Duration::from_secs(1)).await;
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = server.connect().await {
        assert!(Instant::now() < deadline, "{error}");
    }
    let keys = Keys::new("lock:", &LockName::new("a").unwrap());
    let (second, generation) = (server.identity().unwrap(), server.generation(&keys));
    assert_ne!(first.run_id, second.run_id);
    stalled.await.unwrap();
    assert_eq!(server.generation(&keys), generation);
    assert_eq!(server.identity().unwrap().run_id, second.run_id);
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn connections_that_work_are_used_also_when_the_map_cannot_be_read_again() {
    let cluster = RedisCluster::start().await.unwrap();
    let door = Arc::new(Door::default());
    let config = RedisConfig::from_url(&cluster.url()).unwrap();
    let locks = config.dial(door.dial()).connect().await.unwrap();
    let (broken, works) = (name_on(&cluster, 0).await, name_on(&cluster, 1).await);
    for name in [&broken, &works] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
    door.is_shut.store(true, Ordering::Relaxed);
    cluster.masters()[0].command(&["CLIENT", "KILL", "TYPE", "normal"]).await.unwrap();
    assert!(locks.mutex(&broken).acquire().await.is_err());
    let mut needs_no_map = false;
    for _ in 0..20 {
        // Others may still be after the one that broke.
        let knocks = door.knocks.load(Ordering::Relaxed);
        locks.mutex(&works).acquire().await.unwrap().release().await.unwrap();
        needs_no_map |= door.knocks.load(Ordering::Relaxed) == knocks;
    }
    assert!(needs_no_map, "a connection that works is used without the map");
    door.is_shut.store(false, Ordering::Relaxed);
    // Who reads the map, and is not polled meanwhile, holds up nobody.
    let mutex = locks.mutex(&broken);
    let mut unpolled = pin!(mutex.acquire());
    assert!(unpolled.as_mut().now_or_never().is_none());
    let other = name_on_but(&cluster, 0, &broken).await;
    let guard = timeout(PATIENCE, acquire_in_the_end(&locks, &other)).await.unwrap();
    give_back(guard).await;
    unpolled.await.unwrap().release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_can_wait_for_replicas() {
    tokio::join!(waits_for_replicas(RECIPES[0]), waits_for_replicas(RECIPES[1]));
}

async fn waits_for_replicas(recipe: &str) {
    let master = RedisServer::start().await.unwrap();
    let replica = master.replica().await.unwrap();
    let options = format!("wait_replicas=1&wait_replicas_timeout=1s&{recipe}");
    let locks = connect(&format!("{}?{options}", master.url())).await.unwrap();
    for _ in 0..20 {
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(replica.has_key("lock:a").await);
        guard.release().await.unwrap();
    }

    replica.stop();
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    sleep(Duration::from_millis(200)).await;
    // The connection that all share is not held up meanwhile.
    let start = Instant::now();
    assert!(locks.inspect("a").await.unwrap().is_held());
    assert!(start.elapsed() < Duration::from_millis(600), "held up for {:?}", start.elapsed());
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(!master.has_key("lock:a").await, "not released");
    replica.cont();
    acquire_in_the_end(&locks, "a").await.release().await.unwrap();
}

/// Waits until the server says so.
async fn until_info(server: &RedisServer, section: &str, what: &str) {
    until(what, async || server.text(&["INFO", section]).await.contains(what)).await;
}

/// As by a server or a proxy that has a time limit for those.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_connection_for_replicas_that_was_closed_while_it_was_idle_is_replaced() {
    let master = RedisServer::start().await.unwrap();
    let _replica = master.replica().await.unwrap();
    let url = format!("{}?wait_replicas=1&wait_replicas_timeout=2s", master.url());
    let locks = connect(&url).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let clients = master.command(&["CLIENT", "LIST", "TYPE", "normal"]).await.unwrap();
    let idle: Vec<_> = clients.text().unwrap().lines().filter(|client| client.contains("cmd=wait")).collect();
    let [idle] = idle[..] else { panic!("{idle:?}") };
    let id = idle.split([' ', '=']).nth(1).unwrap();
    master.command(&["CLIENT", "KILL", "ID", id]).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn replicas_are_waited_for_at_the_master_that_is_in_use() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let _replica = new.replica().await.unwrap();
    let record = Record::of(&old);
    let url = format!("{}?wait_replicas=1&wait_replicas_timeout=2s", old.url());
    let locks = record.connect(&url).await;
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    until_info(&old, "clients", "blocked_clients:1").await;
    // The old one lives on, and is left meanwhile.
    record.moves_to(&new);
    let clients = old.command(&["CLIENT", "LIST", "TYPE", "normal"]).await.unwrap();
    for client in clients.text().unwrap().lines().filter(|client| client.contains("cmd=evalsha")) {
        let id = client.split([' ', '=']).nth(1).unwrap();
        old.command(&["CLIENT", "KILL", "ID", id]).await.unwrap();
    }
    locks.inspect("b").await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    for _ in 0..2 {
        let guard = locks.mutex("b").acquire().await.unwrap();
        assert!(new.has_key("lock:b").await);
        give_back(guard).await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_lock_that_is_gone_before_replicas_have_it_is_asked_for_again() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    let url = format!("{}?wait_replicas=1&wait_replicas_timeout=100ms", old.url());
    let locks = record.connect(&url).await;
    // The old one grants it, and the new one does not know of it.
    record.moves_to(&new);
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied), "{error}");
    nothing_is_left(&[old, new]).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn an_acquisition_that_waits_for_replicas_can_be_dropped() {
    let master = RedisServer::start().await.unwrap();
    for recipe in RECIPES {
        let options = format!("wait_replicas=1&wait_replicas_timeout=300ms&{recipe}");
        let locks = connect(&format!("{}?{options}", master.url())).await.unwrap();
        // No replica will ever have it, so every attempt ends with an error at the latest.
        for_each_poll_count(async |polls| {
            let ended = cancel_after(polls, locks.mutex("a").acquire()).await;
            nothing_is_left(std::slice::from_ref(&master)).await;
            ended
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn an_acquisition_in_a_cluster_can_be_dropped() {
    let cluster = RedisCluster::start().await.unwrap();
    let one = format!("redis+cluster://{}", cluster.masters()[0].addr());
    let name = name_on(&cluster, 2).await;
    for recipe in RECIPES {
        for_each_poll_count(async |polls| {
            // Made anew, so that finding the node and connecting to it is a part of it.
            let acquiring = async {
                let locks = connect(&format!("{one}?{recipe}")).await.unwrap();
                let guard = locks.mutex(&name).acquire().await.unwrap();
                guard.release().await.unwrap();
            };
            let ended = cancel_after(polls, acquiring).await;
            nothing_is_left(cluster.masters()).await;
            ended
        })
        .await;
    }
}

async fn nothing_is_left(servers: &[RedisServer]) {
    for server in servers {
        until("a lock is left behind", async || server.text(&["KEYS", "lock:*"]).await == "Array([])").await;
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_pool_leads_to_one_server_only() {
    let pool = deadpool_redis::Config::from_url("redis://h").create_pool(None).unwrap();
    for url in ["redis+cluster://a:1,b:2", "redis+sentinel://a:1/main"] {
        let error = RedisConfig::from_url(url).unwrap().pool(pool.clone()).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("pool"), "{error}");
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_reports_dangers() {
    let server = RedisServer::builder().maxmemory_policy("allkeys-lru").start().await.unwrap();
    let report = connect(&server.url()).await.unwrap().doctor().await.unwrap();
    let text = report.to_string();
    let version = RedisServer::version();
    for part in [version, "standalone", "master", "0 replicas", "appendonly is no", "clock"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert_eq!(report.warnings().count(), 1, "{text}");
    assert!(report.warnings().all(|finding| finding.what.contains("allkeys-lru")), "{text}");
    assert!(text.contains(&server.addr().to_string()), "{text}");

    let durable = RedisServer::builder().appendonly(true).config("min-replicas-to-write", "1");
    let text =
        connect(&durable.start().await.unwrap().url()).await.unwrap().doctor().await.unwrap().to_string();
    let replicas = match RedisServer::version().starts_with("Redis 6") {
        true => "does not apply min-replicas-to-write to scripts",
        false => "every write is refused",
    };
    assert!(text.contains("survive a restart") && text.contains(replicas), "{text}");
}

#[tokio::test]
async fn the_doctor_counts_last_tokens_and_sees_that_the_memory_is_full() {
    let server = RedisServer::builder().maxmemory_policy("noeviction").start().await.unwrap();
    let locks = connect(&server.url()).await.unwrap();
    for name in ["a", "b"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
    let report = async || locks.doctor().await.unwrap().to_string();
    let few = report().await;
    assert!(few.contains(": 2 locks have a last token, 0.0 MB in all and "), "{few}");
    assert!(!few.contains("token_ttl") && !few.contains("the memory is"), "{few}");

    // As 60 000 locks leave them, and as many other keys: more than are looked at.
    let fill = "for n = 1, 60000 do redis.call('ZADD', 'polylock:tokens:{lock:' .. n .. '}', n, 'last') \
                redis.call('SET', n, '') end return redis.status_reply('OK')";
    server.call(&["EVAL", fill, "0"]).await;
    let many = report().await;
    let count = many.split_once(": about ").and_then(|(_, rest)| rest.split_once(" locks")).unwrap().0;
    assert!((57_000..63_000).contains(&count.parse::<u32>().unwrap()), "{many}");
    assert!(many.contains("token_ttl"), "{many}");
    // As much as the server says that it uses for them.
    let each =
        many.split_once(" MB in all and ").and_then(|(_, rest)| rest.split_once(" bytes each")).unwrap().0;
    assert!((150..220).contains(&each.parse::<u32>().unwrap()), "{many}");

    server.call(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let full = report().await;
    assert!(full.contains("warning") && full.contains("the memory is full, with "), "{full}");
}

#[tokio::test]
async fn the_doctor_names_commands_that_the_server_lacks() {
    let without =
        async |commands: &[&str]| RedisServer::builder().without_commands(commands).start().await.unwrap();
    let server = without(&["EVALSHA", "TIME", "ZADD"]).await;
    let locks = connect(&server.url()).await.unwrap();
    let report = locks.doctor().await.unwrap();
    let warnings: Vec<_> = report.warnings().map(|finding| &*finding.what).collect();
    assert!(warnings.iter().any(|what| what.contains("no command EVALSHA, TIME, ZADD:")), "{report}");
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("EVALSHA") && error.to_string().contains("rename-command"), "{error}");

    let server = without(&["TIME"]).await;
    let error = connect(&server.url()).await.unwrap().mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("polylock doctor"), "{error}");

    let server = without(&["SCRIPT"]).await;
    let locks = connect(&server.url()).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let report = locks.doctor().await.unwrap();
    assert!(report.to_string().contains("no command SCRIPT: the first call"), "{report}");
    assert!(!report.warnings().any(|finding| finding.what.contains("SCRIPT")), "{report}");

    let server = without(&["SCRIPT", "EVAL"]).await;
    let error = connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("SCRIPT"), "{error}");

    let report = connect(&without(&[]).await.url()).await.unwrap().doctor().await.unwrap();
    assert!(!report.to_string().contains("command"), "{report}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_reports_missing_rights_of_waiters() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let options = || RedisServer::builder().maxmemory_policy("noeviction");
    for (rules, server, wanted) in [
        ("", options(), None),
        ("-publish", options(), Some("PUBLISH is refused")),
        ("resetchannels", options(), Some("SUBSCRIBE is refused")),
        ("-client|tracking", options(), Some("CLIENT TRACKING is refused")),
        ("", options().without_commands(&["HELLO"]), Some("RESP3 is refused")),
    ] {
        let rules = format!("on >{SECRET} ~* &* +@all {rules}");
        let server = server.user("worker", &rules).start().await.unwrap();
        let locks = connect(&format!("redis://worker:{SECRET}@{}", server.addr())).await.unwrap();
        let report = locks.doctor().await.unwrap();
        let refused: Vec<_> = report.warnings().filter(|found| found.what.contains("is refused")).collect();
        assert_eq!(refused.is_empty(), wanted.is_none(), "{rules}: {report}");
        assert!(
            wanted.is_none_or(|wanted| refused.iter().any(|found| found.what.contains(wanted))),
            "{report}"
        );
        assert!(refused.iter().all(|found| found.server == server.addr().to_string()), "{report}");
    }
    let cluster = RedisCluster::start().await.unwrap();
    for master in cluster.masters() {
        let rules = ["on", &format!(">{SECRET}"), "~*", "&*", "+@all", "-ssubscribe", "-spublish"];
        master.call(&[&["ACL", "SETUSER", "worker"][..], &rules].concat()).await;
    }
    let url = cluster.url().replace("//", &format!("//worker:{SECRET}@"));
    let text = connect(&url).await.unwrap().doctor().await.unwrap().to_string();
    for part in ["SSUBSCRIBE is refused", "SPUBLISH is refused", "+ssubscribe"] {
        assert_eq!(text.matches(part).count(), if part.starts_with('+') { 6 } else { 3 }, "{text}");
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_reports_missing_rights_with_wait_notify() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let cluster = RedisCluster::start().await.unwrap();
    let url = format!("{}?wait=notify", cluster.url().replace("//", &format!("//worker:{SECRET}@")));
    for (missing, wanted) in [
        (&["-ssubscribe", "-spublish", "-client|tracking"][..], None),
        (&["-subscribe"], Some("SUBSCRIBE is refused")),
        (&["-publish"], Some("PUBLISH is refused")),
        (&["resetchannels"], Some("SUBSCRIBE is refused")),
    ] {
        for master in cluster.masters() {
            let rules =
                ["ACL", "SETUSER", "worker", "reset", "on", &format!(">{SECRET}"), "~*", "&*", "+@all"];
            master.call(&[&rules, missing].concat()).await;
        }
        let report = connect(&url).await.unwrap().doctor().await.unwrap();
        let refused: Vec<_> = report.warnings().filter(|found| found.what.contains("is refused")).collect();
        assert_eq!(refused.is_empty(), wanted.is_none(), "{missing:?}: {report}");
        assert!(
            wanted.is_none_or(|wanted| refused.iter().any(|found| found.what.starts_with(wanted))),
            "{missing:?}: {report}"
        );
        assert!(refused.iter().all(|found| !found.advice.contains("+ssubscribe")), "{report}");
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_reports_that_a_process_polls_for_want_of_a_right() {
    let rules = format!("on >{SECRET} ~* &* +@all -subscribe");
    let server = RedisServer::builder().user("worker", &rules).start().await.unwrap();
    let locks = connect(&format!("redis://worker:{SECRET}@{}", server.addr())).await.unwrap();
    let guard = connect(&server.url()).await.unwrap().mutex("a").acquire().await.unwrap();
    assert!(locks.mutex("a").try_acquire_for(Duration::from_millis(300)).await.unwrap().is_none());
    assert!(!locks.doctor().await.unwrap().to_string().contains("this process poll since"));
    server.call(&["ACL", "SETUSER", "worker", "+subscribe"]).await;
    let text = locks.doctor().await.unwrap().to_string();
    assert!(text.contains("this process poll since"), "{text}");
    give_back(guard).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_doctor_sees_every_master_of_a_cluster() {
    let cluster = RedisCluster::start().await.unwrap();
    let text = connect(&cluster.url()).await.unwrap().doctor().await.unwrap().to_string();
    for master in cluster.masters() {
        let version = RedisServer::version();
        assert!(text.contains(&format!("{}: {version}, cluster, master", master.addr())), "{text}");
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_server_without_its_replicas_is_to_be_tried_again() {
    if RedisServer::lacks("refusal of the writes of scripts while replicas are missing", (7, 0)) {
        return;
    }
    let server = RedisServer::builder().config("min-replicas-to-write", "1").start().await.unwrap();
    let locks = connect(&server.url()).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    assert!(error.to_string().contains("NOREPLICAS") && error.to_string().contains("try again"), "{error}");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await.unwrap();
    locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn missing_rights_are_named() {
    for (rules, connects) in [
        ("+@all -@scripting", false),
        ("+@all -script -eval", false),
        ("+@all -evalsha", true),
        ("+@all -set", true),
        ("+@all -pexpire -time", true),
    ] {
        let rules = format!("on >{SECRET} ~* &* {rules}");
        let server = RedisServer::builder().user("worker", &rules).start().await.unwrap();
        let locks = connect(&format!("redis://worker:{SECRET}@{}", server.addr())).await;
        assert_eq!(locks.is_ok(), connects, "{rules}: {locks:?}");
        let error = match locks {
            Ok(locks) => locks.mutex("a").acquire().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{rules}: {error}");
        for right in ["+evalsha", "+script|load", "+set", "+get", "+del", "+pexpire", "~lock:*"] {
            assert!(error.to_string().contains(right), "{rules}: {right} is missing: {error}");
        }
        assert!(!server.has_key("lock:a").await, "{rules}: something was left behind");
    }
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_rights_that_are_named_are_enough() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    let url = format!("redis://worker:{SECRET}@{}", server.addr());
    give_rights(&url, &[&server]).await;
    works(&url).await;
    waits_without_polling(&url, "a", &server).await;
    let cluster = RedisCluster::start().await.unwrap();
    let (masters, name) = (cluster.masters(), name_on(&cluster, 0).await);
    let url = cluster.url().replace("//", &format!("//worker:{SECRET}@"));
    give_rights(&url, &[&masters[0], &masters[1], &masters[2]]).await;
    works(&url).await;
    waits_without_polling(&url, &name, &masters[0]).await;
}

/// Gives a user the rights that are named when it has none, and no other.
async fn give_rights(url: &str, servers: &[&RedisServer]) {
    let rule = ["ACL", "SETUSER", "worker", "on", &format!(">{SECRET}")];
    for server in servers {
        server.call(&rule).await;
    }
    let error = connect(url).await.unwrap_err().to_string();
    let named: Vec<&str> =
        error.split_whitespace().filter(|word| word.starts_with(['+', '~', '&'])).collect();
    for server in servers {
        server.call(&[&rule[..3], &named[..]].concat()).await;
    }
}

async fn waits_without_polling(url: &str, name: &str, server: &RedisServer) {
    let (ours, theirs) = (connect(url).await.unwrap(), connect(url).await.unwrap());
    let guard = ours.mutex(name).acquire().await.unwrap();
    let waiter = acquiring(theirs.mutex(name));
    // It is in the queue only while its inbox is live.
    let queue = format!("polylock:queue:{{lock:{name}}}");
    until("nobody stands in the queue", async || server.call(&["LLEN", &queue]).await.int() == Some(1)).await;
    until_info(server, "clients", "tracking_clients:1").await;
    give_back(guard).await;
    let next = come(waiter).await;
    give_back(next).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn missing_rights_for_a_database_or_the_sentinels_are_reported() {
    if RedisServer::lacks("rights to sharded channels", (7, 0)) {
        return;
    }
    let server = RedisServer::start().await.unwrap();
    let url = format!("redis://worker:{SECRET}@{}/1", server.addr());
    give_rights(&url, &[&server]).await;
    works(&url).await;
    let error = connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("databases"), "{error}");
    let error = connect(&server.url().replace("redis://", "redis+cluster://")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let sentinel = RedisSentinel::start().await.unwrap();
    let rule = ["ACL", "SETUSER", "watcher", "on", &format!(">{SECRET}")];
    for server in sentinel.sentinels() {
        server.call(&rule).await;
    }
    let url = format!("{}?sentinel_user=watcher&sentinel_password={SECRET}", sentinel.url());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    let named: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with(['+', '&'])).collect();
    for server in sentinel.sentinels() {
        server.call(&[&rule[..3], &named[..]].concat()).await;
    }
    works(&url).await;
    let error = connect(&url.replace(SECRET, "another")).await.unwrap_err();
    assert!(error.to_string().contains("sentinel_password"), "{error}");
    assert!(!error.to_string().contains("~lock:"), "{error}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_node_of_a_cluster_is_no_server_of_its_own() {
    let cluster = RedisCluster::start().await.unwrap();
    let locks = connect(&cluster.masters()[0].url()).await.unwrap();
    let name = name_on(&cluster, 1).await;
    let error = locks.mutex(&name).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_server_that_is_too_old_is_refused_with_its_version() {
    for (version, refused) in [("5.0.7", true), ("6.0.16", true), ("6.2.0", false)] {
        let addr = pretend_version(version).await;
        let connected = connect(&format!("redis://{addr}")).await;
        assert_eq!(connected.is_err(), refused, "{version}");
        if let Err(error) = connected {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(version) && error.to_string().contains("6.2"), "{error}");
        }
    }
}

/// A server that knows no HELLO and says that it has this version.
async fn pretend_version(version: &'static str) -> std::net::SocketAddr {
    let info = format!("# Server\r\nredis_version:{version}\r\n");
    pretend(move |command| match command {
        "HELLO" => String::from("-ERR unknown command `HELLO`\r\n"),
        "INFO" => bulk(&info),
        _ => String::from("+OK\r\n"),
    })
    .await
}

/// A sentinel that names the master at this port, and announces another to its subscribers.
async fn pretend_sentinel(names: Arc<AtomicU16>, announces: Option<u16>) -> std::net::SocketAddr {
    let channel = bulk("+switch-master");
    pretend(move |command| {
        let names = names.load(Ordering::Relaxed);
        match command {
            "SENTINEL" => format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&names.to_string())),
            "SUBSCRIBE" => {
                let confirmed = format!("*3\r\n{}{channel}:1\r\n", bulk("subscribe"));
                let Some(announces) = announces else { return confirmed };
                let address = bulk(&format!("main 127.0.0.1 {names} 127.0.0.1 {announces}"));
                format!("{confirmed}*3\r\n{}{channel}{address}", bulk("message"))
            }
            "PING" => format!("*2\r\n{}{}", bulk("pong"), bulk("")),
            _ => String::from("+OK\r\n"),
        }
    })
    .await
}

/// A server that answers each command, known by its first word, in this way.
async fn pretend(answer: impl Fn(&str) -> String + Clone + Send + 'static) -> std::net::SocketAddr {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let (reader, mut writer) = stream.into_split();
                let mut lines = BufReader::new(reader).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if !line.starts_with('*') {
                        continue;
                    }
                    // The length of the first word, and the word.
                    let _ = lines.next_line().await;
                    let Ok(Some(command)) = lines.next_line().await else { return };
                    let Ok(()) = writer.write_all(answer(&command).as_bytes()).await else { return };
                }
            });
        }
    });
    addr
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

#[cfg(feature = "tls")]
mod tls {
    use lock_testkit::Certificates;

    use super::*;

    #[tokio::test]
    #[ignore = "full: sentinels and clusters"]
    async fn with_our_own_authority() {
        if RedisServer::lacks_tls() {
            return;
        }
        let certificates = Arc::new(Certificates::new().unwrap());
        let server = RedisServer::builder().tls(&certificates, false).start().await.unwrap();
        let url = format!("rediss://{}?connect_timeout=10s", server.tls_addr());
        works(&format!("{url}&tls_ca={}", certificates.ca().display())).await;
        works(&format!("{url}&tls_insecure_skip_verify=true")).await;

        let another = Certificates::new().unwrap();
        // Whom the system trusts, or another authority, is not whom the test made.
        for url in [url.clone(), format!("{url}&tls_ca={}", another.ca().display())] {
            let error = connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error} {error:?}");
            assert!(error.to_string().contains("tls_ca"), "{error} {error:?}");
        }
    }

    #[tokio::test]
    #[ignore = "full: sentinels and clusters"]
    async fn with_a_certificate_of_ours() {
        if RedisServer::lacks_tls() {
            return;
        }
        let certificates = Arc::new(Certificates::new().unwrap());
        let server = RedisServer::builder().tls(&certificates, true).start().await.unwrap();
        let url = format!("rediss://{}?tls_ca={}", server.tls_addr(), certificates.ca().display());
        let (cert, key) = certificates.client();
        works(&format!("{url}&tls_cert={}&tls_key={}", cert.display(), key.display())).await;
        let error = connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error} {error:?}");
        assert!(error.to_string().contains("tls_cert"), "{error} {error:?}");
        let error = connect(&format!("{url}&tls_cert={}", cert.display())).await.unwrap_err();
        assert!(error.to_string().contains("tls_key"), "{error}");
    }

    #[tokio::test]
    #[ignore = "full: sentinels and clusters"]
    async fn files_that_are_not_there_are_named() {
        let error = connect("rediss://h?tls_ca=/no/such/file.pem").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("/no/such/file.pem"), "{error}");
    }
}
