//! Redis is failed over, or loses a tombstone, while locks move to ZooKeeper: what is kept, what is lost, and who notices.

use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{RedisSentinel, RedisServer, ZooKeeper, migration_url, until};
use polylock::{ErrorKind, Guard, GuardState, Locks, LossReason, Operator, Rung};
use tokio::time::{Instant, sleep, timeout};

/// Far more than a failover takes.
const PATIENCE: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(300);
const TTL: Duration = Duration::from_secs(5);
/// For a busy machine.
const SLACK: Duration = Duration::from_secs(5);

/// A master with a replica and sentinels, and a ZooKeeper.
struct Servers {
    redis: RedisSentinel,
    zk: ZooKeeper,
    /// Further options of Redis.
    options: &'static str,
}

impl Servers {
    async fn start(options: &'static str) -> Self {
        let (redis, zk) = tokio::join!(RedisSentinel::start(), ZooKeeper::start());
        Self { redis: redis.unwrap(), zk: zk.unwrap(), options }
    }

    fn from(&self) -> String {
        format!("{}?ttl={}s{}", self.redis.url(), TTL.as_secs(), self.options)
    }

    fn to(&self) -> String {
        format!("{}?session_timeout=4s&session=private", self.zk.url())
    }

    async fn on(&self, rung: Rung) -> Locks {
        process(&self.from(), &self.to(), rung).await
    }

    /// A client of one store alone.
    async fn only(&self, url: &str) -> Locks {
        at_last(url).await
    }

    async fn operator(&self) -> Operator {
        operator(&self.from(), &self.to()).await
    }

    fn master(&self) -> &RedisServer {
        &self.redis.servers()[0]
    }

    fn replica(&self) -> &RedisServer {
        &self.redis.servers()[1]
    }

    /// Keeps from the replica what is written from now on.
    async fn cut_replica_off(&self) {
        self.replica().stop();
        self.master().command(&["CLIENT", "KILL", "TYPE", "replica"]).await.unwrap();
        until("the master has no replica", async || {
            let replication = self.master().command(&["INFO", "replication"]).await.unwrap();
            replication.text().is_some_and(|text| text.contains("connected_slaves:0"))
        })
        .await;
    }

    /// The master dies, and the replica is promoted with what it has.
    async fn fail_over(&self) {
        self.master().kill();
        self.replica().cont();
        let is_promoted = async || self.replica().role().await.as_deref() == Some("master");
        until("the replica is promoted", is_promoted).await;
    }

    /// What is in the place of a lock on the master that was promoted.
    async fn value(&self, name: &str) -> Option<String> {
        value(self.replica(), name).await
    }
}

async fn process(from: &str, to: &str, rung: Rung) -> Locks {
    at_last(&migration_url("shop", from, to, &format!("&rung={rung}"))).await
}

/// A client, in spite of an outage.
async fn at_last(url: &str) -> Locks {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Locks::connect(url).await {
            Ok(locks) => return locks,
            Err(error) => assert!(error.is_retryable() && Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn operator(from: &str, to: &str) -> Operator {
    let connect = |url: &str| Arc::clone(Locks::connect_lazy(url).unwrap().backend());
    Operator::connect("shop", connect(from), connect(to)).await.unwrap()
}

async fn value(server: &RedisServer, name: &str) -> Option<String> {
    let value = server.command(&["GET", &format!("lock:{name}")]).await.unwrap();
    value.text().map(ToOwned::to_owned)
}

fn is_tombstone(value: Option<&String>) -> bool {
    value.is_some_and(|value| value.starts_with("polylock:moved"))
}

/// The lock, in spite of an outage.
async fn hold(locks: &Locks, name: &str) -> Guard {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match locks.mutex(name).try_acquire_for(PATIENCE).await {
            Ok(guard) => return guard.unwrap_or_else(|| panic!("{name} is busy")),
            Err(error) => {
                assert!(error.is_retryable() && Instant::now() < deadline, "{error}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn until_noted(operator: &Operator, name: &str) {
    until("the lock is noted as moved", async || operator.status().await.unwrap().moved > 0).await;
    let status = operator.status().await.unwrap();
    assert!(!status.lost_tombstones.contains(&name.to_owned()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels, and waits for a lease"]
async fn a_guard_of_both_is_lost_with_a_failover_that_forgets_its_lock() {
    let servers = Servers::start("").await;
    let (one, two) = (servers.on(Rung::Dual).await, servers.on(Rung::Dual).await);
    let (redis, zk) = (servers.only(&servers.from()).await, servers.only(&servers.to()).await);
    servers.cut_replica_off().await;
    let first = hold(&one, "a").await;
    let next = tokio::spawn(async move { hold(&two, "a").await });
    servers.fail_over().await;
    let promoted = Instant::now();
    assert_eq!(servers.value("a").await, None, "the replica was cut off");

    // A client of Redis alone may get in beside the guard, for a ttl at most: Redis was never safer.
    let straggler = hold(&redis, "a").await;
    let beside = first.is_valid();
    println!(
        "a client of Redis alone got in, and the guard of both was {}",
        if beside { "valid" } else { "lost" }
    );
    assert!(straggler.token() > first.token(), "{} after {}", straggler.token(), first.token());
    let left = (TTL + SLACK).saturating_sub(promoted.elapsed());
    let reason = timeout(left, first.lost()).await.expect("the half on Redis ends with its ttl");
    println!("the guard was lost {:?} after the promotion: {reason:?}", promoted.elapsed());

    // Its other half is given back, though the guard is still there: the waiter has it, and waits for Redis.
    sleep(MOMENT).await;
    assert!(!next.is_finished(), "two holders");
    assert!(straggler.is_valid());
    assert!(zk.mutex("a").try_acquire().await.unwrap().is_none());
    let (last, token) = (straggler.token(), first.token());
    straggler.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(next.token() > last && next.token() > token);
    assert!(!first.is_valid(), "two holders");
    next.release().await.unwrap();
    zk.mutex("a").try_acquire_for(PATIENCE).await.unwrap().expect("no half is left").release().await.unwrap();
    assert!(matches!(first.state(), GuardState::Lost(_)));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn holders_of_both_exclude_each_other_through_a_failover() {
    let servers = Servers::start("").await;
    let (one, two) = (servers.on(Rung::Dual).await, servers.on(Rung::Dual).await);
    servers.cut_replica_off().await;
    let first = hold(&one, "a").await;
    servers.fail_over().await;
    // Until the guard is lost, its lock of ZooKeeper keeps out all that hold both, whatever Redis forgot.
    let deadline = Instant::now() + PATIENCE;
    let second = loop {
        assert!(Instant::now() < deadline, "the guard is neither lost nor is its lock given back");
        let next = two.mutex("a").try_acquire().await;
        let is_valid = first.is_valid();
        match next {
            Ok(Some(next)) => {
                assert!(!is_valid, "two holders");
                break next;
            }
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    assert!(second.token() > first.token());
    second.release().await.unwrap();
}

/// What no rule prevents, and `docs/MIGRATION.md` admits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_raise_that_a_failover_forgets_leaves_clients_of_redis_behind_but_not_holders_of_both() {
    let servers = Servers::start("").await;
    let (movers, both) = (servers.on(Rung::Move).await, servers.on(Rung::Dual).await);
    let redis = servers.only(&servers.from()).await;
    // From the first move on, the tokens of ZooKeeper are ahead of the clock of Redis.
    hold(&movers, "moved").await.release().await.unwrap();
    servers.cut_replica_off().await;
    let first = hold(&both, "a").await;
    let token = first.token();
    first.release().await.unwrap();
    servers.fail_over().await;
    let straggler = hold(&redis, "a").await;
    assert!(straggler.token() < token, "{} is larger than {token}", straggler.token());
    straggler.release().await.unwrap();
    let next = hold(&both, "a").await;
    assert!(next.token() > token, "{} after {token}", next.token());
    // The last token of Redis is raised again.
    next.release().await.unwrap();
    let straggler = hold(&redis, "a").await;
    assert!(straggler.token() > token);
    straggler.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_the_replica_has_survives_a_failover() {
    let servers = Servers::start("").await;
    let (movers, redis, operator) =
        (servers.on(Rung::Move).await, servers.only(&servers.from()).await, servers.operator().await);
    let first = hold(&movers, "a").await;
    until_noted(&operator, "a").await;
    let tombstone = value(servers.master(), "a").await;
    assert!(is_tombstone(tombstone.as_ref()));
    servers.fail_over().await;
    assert_eq!(servers.value("a").await, tombstone);
    assert!(first.is_valid());
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        assert!(Instant::now() < deadline, "the tombstone is not found");
        match redis.mutex("a").try_acquire().await {
            Ok(guard) => assert!(guard.is_none(), "two holders"),
            Err(error) if error.kind() == ErrorKind::Moved => break error,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert!(error.to_string().contains("moved"), "{error}");
    let token = first.token();
    first.release().await.unwrap();
    for rung in [Rung::Old, Rung::Dual, Rung::Move] {
        let guard = hold(&servers.on(rung).await, "a").await;
        assert!(guard.token() > token);
        guard.release().await.unwrap();
    }
    let status = operator.status().await.unwrap();
    assert_eq!((status.lost_tombstones.len(), status.old_store), (0, None));
}

/// What no rule prevents, and `docs/MIGRATION.md` admits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_a_failover_forgets_lets_clients_of_redis_in_and_is_written_again() {
    let servers = Servers::start("").await;
    let (movers, redis, operator) =
        (servers.on(Rung::Move).await, servers.only(&servers.from()).await, servers.operator().await);
    servers.cut_replica_off().await;
    let guard = hold(&movers, "a").await;
    let token = guard.token();
    guard.release().await.unwrap();
    until_noted(&operator, "a").await;
    assert!(is_tombstone(value(servers.master(), "a").await.as_ref()));
    servers.fail_over().await;
    assert_eq!(servers.value("a").await, None, "the replica was cut off");

    let straggler = hold(&redis, "a").await;
    assert!(straggler.token() > token);
    until("the status finds it", async || {
        let status = operator.status().await.unwrap();
        // The operator may have to find the new master first, which its status says.
        assert!(status.old_store.is_some() || status.lost_tombstones == ["a"], "{status:?}");
        status.old_store.is_none()
    })
    .await;
    // Once it has another connection to Redis, a mover does not rely on what it read before.
    hold(&movers, "another").await.release().await.unwrap();
    assert!(movers.mutex("a").try_acquire().await.unwrap().is_none(), "two holders");
    let last = straggler.token();
    straggler.release().await.unwrap();
    let guard = hold(&movers, "a").await;
    assert!(is_tombstone(servers.value("a").await.as_ref()), "it is written again");
    assert!(guard.token() > last);
    assert_eq!(operator.status().await.unwrap().lost_tombstones, [""; 0]);
    assert_eq!(redis.mutex("a").try_acquire().await.unwrap_err().kind(), ErrorKind::Moved);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_a_replica_does_not_confirm_hands_out_no_guard() {
    let servers = Servers::start("").await;
    let movers = servers.on(Rung::Move).await;
    // It is connected, and does not answer: the move waits for it.
    servers.replica().stop();
    let error = timeout(PATIENCE, movers.mutex("a").try_acquire()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // It counts once the replica has it.
    servers.replica().cont();
    let guard = hold(&movers, "a").await;
    assert!(is_tombstone(servers.value("a").await.as_ref()));
    servers.fail_over().await;
    assert!(is_tombstone(servers.value("a").await.as_ref()));
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn with_wait_replicas_a_replica_that_is_cut_off_is_an_error_and_loses_nothing() {
    let servers = Servers::start("&wait_replicas=1&wait_replicas_timeout=500ms").await;
    let (redis, operator) = (servers.only(&servers.from()).await, servers.operator().await);
    servers.cut_replica_off().await;
    for rung in [Rung::Dual, Rung::Move] {
        let locks = servers.on(rung).await;
        let error = locks.mutex("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{rung}: {error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(!is_tombstone(value(servers.master(), "a").await.as_ref()));
    }
    servers.replica().cont();
    let (both, moved) = (servers.on(Rung::Dual).await, servers.on(Rung::Move).await);
    let both = hold(&both, "both").await;
    let moved = hold(&moved, "moved").await;
    until_noted(&operator, "moved").await;
    servers.fail_over().await;
    // Both are on the replica, and nobody gets in.
    assert!(is_tombstone(servers.value("moved").await.as_ref()));
    until("the client of Redis finds the new master", async || redis.inspect("both").await.is_ok()).await;
    let beside = redis.mutex("both").try_acquire().await.unwrap();
    assert!(beside.is_none() || !both.is_valid(), "two holders");
    assert_eq!(redis.mutex("moved").try_acquire().await.unwrap_err().kind(), ErrorKind::Moved);
    assert!(moved.is_valid());
    assert_eq!(operator.status().await.unwrap().lost_tombstones, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: waits for more than a minute"]
async fn a_guard_whose_tombstone_is_deleted_is_lost_within_about_a_minute() {
    let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::start());
    let (redis, zk) = (redis.unwrap(), zk.unwrap());
    // So long that no pause of a busy machine ends it.
    let (from, to) = (redis.url(), format!("{}?session_timeout=20s&session=private", zk.url()));
    let (movers, operator) = (process(&from, &to, Rung::Move).await, operator(&from, &to).await);
    let (deleted, kept) = (hold(&movers, "deleted").await, hold(&movers, "kept").await);
    until("both are noted", async || operator.status().await.unwrap().moved == 2).await;
    redis.command(&["DEL", "lock:deleted"]).await.unwrap();
    let since = Instant::now();
    assert_eq!(operator.status().await.unwrap().lost_tombstones, ["deleted"]);

    // Until the guard is lost, a client of Redis alone is beside it.
    let straggler = hold(&Locks::connect(&from).await.unwrap(), "deleted").await;
    assert!(straggler.token() > deleted.token());
    straggler.release().await.unwrap();
    let reason = timeout(Duration::from_secs(90), deleted.lost()).await.expect("tombstones are read again");
    assert_eq!(reason, LossReason::Removed);
    println!("lost {:?} after the tombstone was deleted", since.elapsed());
    assert!(kept.is_valid(), "only its own guard is lost, and this one is {:?}", kept.state());
    // Though the guard is still there.
    let next = process(&from, &to, Rung::Move).await;
    let next = hold(&next, "deleted").await;
    assert!(next.token() > deleted.token());
    assert!(is_tombstone(value(&redis, "deleted").await.as_ref()));
    assert_eq!(operator.status().await.unwrap().lost_tombstones, [""; 0]);
}
