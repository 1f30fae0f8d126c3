//! The rung `shadow`: what is granted twice is counted, and a shadow ends with its guard.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, Locks};
use lock_migrate::{Migration, MigrationConfig, Rung};
use lock_testkit::proxy::{Direction, FaultProxy};
use lock_testkit::{give_back, soon, take, until};

use crate::common::{LEASE, Servers, is_busy, pass, zk};
use crate::faults::Side;

/// A process on the rung, with its own connection to ZooKeeper or one through a proxy.
async fn shadowing(servers: &Servers, proxy: Option<&FaultProxy>) -> (Arc<Migration>, Locks) {
    let zk = zk(proxy.map_or_else(|| servers.zk.addr(), FaultProxy::addr), 2 * LEASE).await;
    let config = MigrationConfig::new("shop").rung(Rung::Shadow);
    let migration = Arc::new(config.open(servers.redis().await, zk).await.unwrap());
    let locks = Locks::from_dyn(Arc::clone(&migration) as Arc<dyn Backend>);
    (migration, locks)
}

#[tokio::test]
async fn a_lock_that_is_held_for_a_while_has_a_shadow() {
    let servers = Servers::start().await;
    let ((migration, locks), (_, zk)) = (shadowing(&servers, None).await, servers.apart().await);
    for round in 1..3 {
        let guard = take(&locks, "a").await;
        until("the shadow is granted", async || migration.shadow().granted >= round).await;
        assert!(is_busy(&zk, ".shadow/a").await);
        give_back(guard).await;
        // As the next holder needs it: what releases late ends in the background.
        pass(&zk, ".shadow/a").await;
    }
    let report = migration.shadow();
    assert_eq!((report.tried, report.double_grants, report.failed), (2, 0, 0));
}

#[tokio::test]
async fn a_lock_that_is_granted_twice_is_counted_and_a_crash_is_not() {
    let servers = Servers::start().await;
    let (first, second) = (shadowing(&servers, None).await, shadowing(&servers, None).await);
    let doubles = || first.0.shadow().double_grants + second.0.shadow().double_grants;
    // As a holder leaves it that crashed, whose key has ended: nobody answers for its session.
    let left = take(&servers.apart().await.1, ".shadow/crashed").await;
    let guard = take(&second.1, "crashed").await;
    soon(left.revoke_requested()).await;
    // Time: nobody answers.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(doubles(), 0);
    give_back(guard).await;

    let guard = take(&first.1, "doubled").await;
    until("the shadow of the first", async || first.0.shadow().granted == 1).await;
    // As a failover does that forgets it.
    servers.redis.call(&["DEL", "lock:doubled"]).await;
    let other = take(&second.1, "doubled").await;
    until("the first one finds it", async || doubles() == 1).await;
    drop((guard, other));
}

#[tokio::test]
async fn readers_beside_a_writer_that_became_one_are_no_double_grant() {
    let servers = Servers::start().await;
    let (first, second) = (shadowing(&servers, None).await, shadowing(&servers, None).await);
    let mut guard = first.1.rw("a").write().await.unwrap();
    until("the shadow of the writer", async || first.0.shadow().granted == 1).await;
    guard.downgrade().await.unwrap();
    let reader = second.1.rw("a").read().await.unwrap();
    until("the shadow of the reader", async || second.0.shadow().granted == 1).await;
    assert_eq!(first.0.shadow().double_grants + second.0.shadow().double_grants, 0);
    give_back(guard).await;
    give_back(reader).await;
}

#[tokio::test]
async fn a_shadow_ends_with_its_guard_while_zookeeper_is_silent() {
    let servers = Servers::start().await;
    let proxy = servers.proxy(Side::New);
    let (migration, locks) = shadowing(&servers, Some(&proxy)).await;
    pass(&locks, "warm").await;
    proxy.black_hole(Direction::ToClient, true);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 1..=20 {
        let guard = take(&locks, &format!("a-{round}")).await;
        until("a shadow begins", async || migration.shadow().tried == round).await;
        give_back(guard).await;
    }
    until("the shadows end", async || tasks() < before + 10).await;
    assert!(migration.shadow().failed == 0, "by themselves, after a while");
}
