//! Redis is failed over, or loses a tombstone, while locks move to ZooKeeper: what is kept, what is lost, and who notices.

use std::time::Duration;

use lock_testkit::{RedisSentinel, RedisServer, come, give_back, soon, take, until};
use polylock::{ErrorKind, Guard, GuardState, Locks, LossReason, Operator, Rung};
use tokio::time::timeout;

use crate::common::{Stores, connect_at_last, passes, take_at_last};

/// A master with a replica and sentinels, with these options, and a ZooKeeper.
async fn sentinels(options: &str) -> Stores<RedisSentinel> {
    let redis = RedisSentinel::start().await.unwrap();
    let from = format!("{}?ttl=5s{options}", redis.url());
    Stores::with(redis, from).await
}

impl Stores<RedisSentinel> {
    async fn on(&self, rung: Rung) -> Locks {
        let url = lock_testkit::migration_url("shop", &self.from, &self.to(), &format!("&rung={rung}"));
        connect_at_last(&url).await
    }

    /// A client of Redis alone.
    async fn only_redis(&self) -> Locks {
        connect_at_last(&self.from).await
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
        self.master().call(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        until("the master has no replica", async || {
            self.master().text(&["INFO", "replication"]).await.contains("connected_slaves:0")
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

    async fn is_tombstone_on_replica(&self, name: &str) -> bool {
        is_tombstone(value(self.replica(), name).await.as_deref())
    }
}

async fn value(server: &RedisServer, name: &str) -> Option<String> {
    server.call(&["GET", &format!("lock:{name}")]).await.text().map(ToOwned::to_owned)
}

fn is_tombstone(value: Option<&str>) -> bool {
    value.is_some_and(|value| value.starts_with("polylock:moved"))
}

async fn until_noted(operator: &Operator, name: &str) {
    until("the lock is noted as moved", async || operator.status().await.unwrap().moved > 0).await;
    assert!(!lost(operator).await.contains(&name.to_owned()));
}

async fn lost(operator: &Operator) -> Vec<String> {
    operator.status().await.unwrap().lost_tombstones
}

/// Tries until the answer is none that an outage explains.
async fn attempt(locks: &Locks, name: &str) -> polylock::Result<Option<Guard>> {
    soon(async {
        loop {
            match locks.mutex(name).try_acquire().await {
                Err(error) if error.is_retryable() => passes(&error).await,
                answer => return answer,
            }
        }
    })
    .await
}

async fn has_moved(locks: &Locks, name: &str) {
    let error = attempt(locks, name).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Moved && error.to_string().contains("moved"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels, and waits for a lease"]
async fn a_guard_of_both_is_lost_with_a_failover_that_forgets_its_lock() {
    let stores = sentinels("").await;
    let (one, two) = (stores.on(Rung::Dual).await, stores.on(Rung::Dual).await);
    let (redis, zk) = (stores.only_redis().await, Locks::connect(&stores.to()).await.unwrap());
    stores.cut_replica_off().await;
    let first = take_at_last(&one, "a").await;
    let next = tokio::spawn(async move { take_at_last(&two, "a").await });
    stores.fail_over().await;
    assert_eq!(value(stores.replica(), "a").await, None, "the replica was cut off");

    // A client of Redis alone may get in beside the guard, for a ttl at most: Redis was never safer.
    let straggler = take_at_last(&redis, "a").await;
    assert!(straggler.token() > first.token(), "{} after {}", straggler.token(), first.token());
    let reason = soon(first.lost()).await;
    println!("the half on Redis ends with its ttl: {reason:?}");

    // Its other half is given back, though the guard is still there: the waiter has it, and waits for Redis.
    until("the waiter has the other half", async || zk.inspect("a").await.is_ok_and(|state| state.is_held()))
        .await;
    assert!(!next.is_finished() && straggler.is_valid(), "two holders");
    assert!(zk.mutex("a").try_acquire().await.unwrap().is_none());
    let (last, token) = (straggler.token(), first.token());
    give_back(straggler).await;
    let next = come(next).await;
    assert!(next.token() > last && next.token() > token);
    assert!(!first.is_valid(), "two holders");
    give_back(next).await;
    // No half is left.
    give_back(take(&zk, "a").await).await;
    assert!(matches!(first.state(), GuardState::Lost(_)));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn holders_of_both_exclude_each_other_through_a_failover() {
    let stores = sentinels("").await;
    let (one, two) = (stores.on(Rung::Dual).await, stores.on(Rung::Dual).await);
    stores.cut_replica_off().await;
    let first = take_at_last(&one, "a").await;
    stores.fail_over().await;
    // Until the guard is lost, its lock of ZooKeeper keeps out all that hold both, whatever Redis forgot.
    let second = soon(async {
        loop {
            let next = attempt(&two, "a").await.unwrap();
            let is_valid = first.is_valid();
            if let Some(next) = next {
                assert!(!is_valid, "two holders");
                return next;
            }
        }
    });
    let second = second.await;
    assert!(second.token() > first.token());
    give_back(second).await;
}

/// What no rule prevents, and `docs/MIGRATION.md` admits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_raise_that_a_failover_forgets_leaves_clients_of_redis_behind_but_not_holders_of_both() {
    let stores = sentinels("").await;
    let (movers, both) = (stores.on(Rung::Move).await, stores.on(Rung::Dual).await);
    let redis = stores.only_redis().await;
    let pass = async |locks: &Locks, name: &str| {
        let guard = take_at_last(locks, name).await;
        let token = guard.token();
        give_back(guard).await;
        token
    };
    // From the first move on, the tokens of ZooKeeper are ahead of the clock of Redis.
    pass(&movers, "moved").await;
    stores.cut_replica_off().await;
    let token = pass(&both, "a").await;
    stores.fail_over().await;
    let straggler = pass(&redis, "a").await;
    assert!(straggler < token, "{straggler} is larger than {token}");
    let next = pass(&both, "a").await;
    assert!(next > token, "{next} after {token}");
    // The last token of Redis is raised again.
    assert!(pass(&redis, "a").await > token);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_the_replica_has_survives_a_failover() {
    let stores = sentinels("").await;
    let (movers, redis, operator) =
        (stores.on(Rung::Move).await, stores.only_redis().await, stores.operator().await);
    let first = take_at_last(&movers, "a").await;
    until_noted(&operator, "a").await;
    let tombstone = value(stores.master(), "a").await;
    assert!(is_tombstone(tombstone.as_deref()));
    stores.fail_over().await;
    assert_eq!(value(stores.replica(), "a").await, tombstone);
    assert!(first.is_valid());
    has_moved(&redis, "a").await;
    let token = first.token();
    give_back(first).await;
    for rung in [Rung::Old, Rung::Dual, Rung::Move] {
        let guard = take_at_last(&stores.on(rung).await, "a").await;
        assert!(guard.token() > token);
        give_back(guard).await;
    }
    let status = operator.status().await.unwrap();
    assert_eq!((status.lost_tombstones.len(), status.old_store), (0, None));
}

/// What no rule prevents, and `docs/MIGRATION.md` admits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_a_failover_forgets_lets_clients_of_redis_in_and_is_written_again() {
    let stores = sentinels("").await;
    let (movers, redis, operator) =
        (stores.on(Rung::Move).await, stores.only_redis().await, stores.operator().await);
    stores.cut_replica_off().await;
    let guard = take_at_last(&movers, "a").await;
    let token = guard.token();
    give_back(guard).await;
    until_noted(&operator, "a").await;
    assert!(is_tombstone(value(stores.master(), "a").await.as_deref()));
    stores.fail_over().await;
    assert_eq!(value(stores.replica(), "a").await, None, "the replica was cut off");

    let straggler = take_at_last(&redis, "a").await;
    assert!(straggler.token() > token);
    until("the status finds it", async || {
        let status = operator.status().await.unwrap();
        // The operator may have to find the new master first, which its status says.
        assert!(status.old_store.is_some() || status.lost_tombstones == ["a"], "{status:?}");
        status.old_store.is_none()
    })
    .await;
    // Once it has another connection to Redis, a mover does not rely on what it read before.
    give_back(take_at_last(&movers, "another").await).await;
    assert!(movers.mutex("a").try_acquire().await.unwrap().is_none(), "two holders");
    let last = straggler.token();
    give_back(straggler).await;
    let guard = take_at_last(&movers, "a").await;
    assert!(stores.is_tombstone_on_replica("a").await, "it is written again");
    assert!(guard.token() > last);
    assert_eq!(lost(&operator).await, [""; 0]);
    has_moved(&redis, "a").await;
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn a_tombstone_that_a_replica_does_not_confirm_hands_out_no_guard() {
    let stores = sentinels("").await;
    let movers = stores.on(Rung::Move).await;
    // It is connected, and does not answer: the move waits for it.
    stores.replica().stop();
    let error = soon(movers.mutex("a").try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    stores.replica().cont();
    // It is there: who meets it asks no replica whether it has it, which may still read what came before.
    let guard = take_at_last(&movers, "a").await;
    until("the replica has it", async || stores.is_tombstone_on_replica("a").await).await;
    stores.fail_over().await;
    assert!(stores.is_tombstone_on_replica("a").await);
    assert!(guard.is_valid());
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: sentinels"]
async fn with_wait_replicas_a_replica_that_is_cut_off_is_an_error_and_loses_nothing() {
    // Time: it is in vain.
    let stores = sentinels("&wait_replicas=1&wait_replicas_timeout=500ms").await;
    let (redis, operator) = (stores.only_redis().await, stores.operator().await);
    stores.cut_replica_off().await;
    for rung in [Rung::Dual, Rung::Move] {
        let error = stores.on(rung).await.mutex("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{rung}: {error}");
        assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(!is_tombstone(value(stores.master(), "a").await.as_deref()));
    }
    stores.replica().cont();
    let (both, moved) = (stores.on(Rung::Dual).await, stores.on(Rung::Move).await);
    let both = take_at_last(&both, "both").await;
    let moved = take_at_last(&moved, "moved").await;
    until_noted(&operator, "moved").await;
    stores.fail_over().await;
    // Both are on the replica, and nobody gets in.
    assert!(stores.is_tombstone_on_replica("moved").await);
    let beside = attempt(&redis, "both").await.unwrap();
    assert!(beside.is_none() || !both.is_valid(), "two holders");
    has_moved(&redis, "moved").await;
    assert!(moved.is_valid());
    assert_eq!(lost(&operator).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "full: waits for more than a minute"]
async fn a_guard_whose_tombstone_is_deleted_is_lost_within_about_a_minute() {
    let redis = RedisServer::start().await.unwrap();
    let from = redis.url();
    let stores = Stores::with(redis, from).await;
    let (movers, operator) = (stores.process(Some(Rung::Move)).await, stores.operator().await);
    let (deleted, kept) = (take(&movers, "deleted").await, take(&movers, "kept").await);
    until("both are noted", async || operator.status().await.unwrap().moved == 2).await;
    stores.redis.call(&["DEL", "lock:deleted"]).await;
    assert_eq!(lost(&operator).await, ["deleted"]);

    // Until the guard is lost, a client of Redis alone is beside it.
    let straggler = take(&Locks::connect(&stores.from).await.unwrap(), "deleted").await;
    assert!(straggler.token() > deleted.token());
    give_back(straggler).await;
    // Time: tombstones are read again each minute.
    let reason = timeout(Duration::from_secs(90), deleted.lost()).await.expect("tombstones are read again");
    assert_eq!(reason, LossReason::Removed);
    assert!(kept.is_valid(), "only its own guard is lost, and this one is {:?}", kept.state());
    // Though the guard is still there.
    let other = stores.process(Some(Rung::Move)).await;
    let next = take(&other, "deleted").await;
    assert!(next.token() > deleted.token());
    assert!(is_tombstone(value(&stores.redis, "deleted").await.as_deref()));
    assert_eq!(lost(&operator).await, [""; 0]);
}
