//! A cluster of which a part is down. That locks work in a cluster is in the conformance suite.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{Guard, GuardState};
use lock_redis::{RedisConfig, redis};
use lock_testkit::{RedisCluster, RedisServer, acquiring, come, give_back, is_renewed, soon, take, until};
use tokio::time::sleep;

use crate::common::dial::{Use, routed};
use crate::common::{acquire_in_the_end, connect};

/// A name whose lock is on this master of the cluster.
pub async fn name_on(cluster: &RedisCluster, master: usize) -> String {
    name_on_but(cluster, master, "").await
}

/// Another name than this one.
pub async fn name_on_but(cluster: &RedisCluster, master: usize, but: &str) -> String {
    for number in 0.. {
        let name = format!("name{number}");
        let slot = usize::from(cluster.slot(&format!("lock:{name}")).await.unwrap());
        if slot / 5462 == master && name != but {
            return name;
        }
    }
    unreachable!("there are names in every slot")
}

async fn answer_of(server: &RedisServer, command: &[&str]) -> String {
    format!("{:?}", server.command(command).await.unwrap())
}

/// Waits until the replica of a master has all that was written there: the rest is lost with the master.
async fn until_replicated(cluster: &RedisCluster, master: usize, name: &str) {
    // Its last write.
    let written = take(&connect(&cluster.url()).await, name).await;
    let key = format!("lock:{name}");
    // A replica would send who asks for the key itself to the master.
    let keys = async || cluster.replicas()[master].call(&["KEYS", &key]).await;
    until("the lock is replicated", async || keys().await.array().unwrap().len() == 1).await;
    give_back(written).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_master_that_hangs_holds_up_no_renewal_at_another() {
    let cluster = RedisCluster::start().await.unwrap();
    for master in cluster.masters() {
        // So that the others go on without it.
        master.call(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    let locks = connect(&format!("{}?ttl=6s", cluster.url())).await;
    let mut guards = Vec::new();
    for master in 0..3 {
        guards.push(take(&locks, &name_on(&cluster, master).await).await);
    }
    cluster.masters()[0].stop();
    soon(guards[0].lost()).await;
    for guard in &guards[1..] {
        is_renewed(guard).await;
    }
    cluster.masters()[0].cont();
    let states: Vec<_> = guards[1..].iter().map(Guard::state).collect();
    assert_eq!(states, [GuardState::Valid, GuardState::Valid]);
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn locks_go_on_after_a_master_of_the_cluster_died() {
    let cluster = RedisCluster::start_n(3, true).await.unwrap();
    let name = name_on(&cluster, 1).await;
    let locks = connect(&cluster.url()).await;
    let guard = take(&locks, &name).await;
    let token = guard.token();
    give_back(guard).await;
    until_replicated(&cluster, 1, &name_on_but(&cluster, 1, &name).await).await;
    cluster.masters()[1].kill();
    let next = acquire_in_the_end(&locks, &name).await;
    assert!(next.token() > token);
    assert!(cluster.replicas()[1].has_key(&format!("lock:{name}")).await);
    // The others have not noticed.
    give_back(take(&locks, &name_on(&cluster, 0).await).await).await;
    give_back(next).await;
}

/// A call is sent again until a node can run it, or until the command timeout.
#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_cluster_that_is_down_for_a_moment_is_waited_for() {
    let cluster = RedisCluster::start().await.unwrap();
    let locks = connect(&format!("{}?command_timeout=20s", cluster.url())).await;
    let name = name_on(&cluster, 0).await;
    give_back(take(&locks, &name).await).await;
    let slot = cluster.slot(&format!("lock:{name}")).await.unwrap().to_string();
    let master = &cluster.masters()[0];
    master.call(&["CLUSTER", "DELSLOTS", &slot]).await;
    assert!(answer_of(master, &["GET", &format!("lock:{name}")]).await.contains("CLUSTERDOWN"));
    master.call(&["CONFIG", "RESETSTAT"]).await;
    let waits = acquiring(locks.mutex(&name));
    until("it is refused", async || master.text(&["INFO", "errorstats"]).await.contains("CLUSTERDOWN")).await;
    assert!(!waits.is_finished());
    master.call(&["CLUSTER", "ADDSLOTS", &slot]).await;
    give_back(come(waits).await).await;
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
    // The port of a server to which all others are second.
    let preferred = Arc::new(AtomicU16::new(0));
    let prefers = Arc::clone(&preferred);
    let dial = routed(move |_, to| {
        let preferred = prefers.load(Ordering::Relaxed);
        async move {
            if preferred != 0 && !to.addr().to_string().ends_with(&format!(":{preferred}")) {
                // Time: its map is read first.
                sleep(Duration::from_millis(200)).await;
            }
            Ok(to)
        }
    });
    let theirs = RedisConfig::from_url(&url).unwrap().dial(dial).connect().await.unwrap();
    let held = take(&connect(&url).await, &name).await;
    let other = name_on_but(&cluster, 0, &name).await;
    give_back(take(&theirs, &other).await).await;
    let (master, replica) = (&cluster.masters()[0], &cluster.replicas()[0]);
    until_replicated(&cluster, 0, &other).await;
    // All at once: since 7.2 a node tells those that it knows whom it forgets.
    let mut ids = Vec::new();
    for node in cluster.masters()[1..].iter().chain(cluster.replicas()) {
        ids.push(cluster.id(node).await.unwrap());
    }
    let forget = ["EVAL", "for _, id in ipairs(ARGV) do redis.call('CLUSTER', 'FORGET', id) end", "0"];
    let ids: Vec<_> = forget.into_iter().chain(ids.iter().map(String::as_str)).collect();
    master.call(&ids).await;
    replica.call(&["CLUSTER", "FAILOVER", "TAKEOVER"]).await;
    until("the server treats the cluster as down", async || {
        answer_of(master, &["GET", "lock:a"]).await.contains("CLUSTERDOWN")
    })
    .await;
    preferred.store(master.port(), Ordering::Relaxed);
    let guard = acquire_in_the_end(&theirs, &other).await;
    assert!(replica.has_key(&format!("lock:{other}")).await);
    give_back(guard).await;
    let before = held.valid_until();
    until("the lease is renewed", async || held.valid_until() > before).await;
    assert_eq!(held.state(), GuardState::Valid);
    give_back(held).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn a_part_of_a_cluster_is_found_beside_a_node_that_hangs() {
    let cluster = RedisCluster::start().await.unwrap();
    let (master, hangs) = (&cluster.masters()[0], RedisServer::start().await.unwrap());
    cluster.masters()[1..].iter().for_each(RedisServer::kill);
    hangs.stop();
    until("the server treats the cluster as down", async || {
        master.text(&["CLUSTER", "INFO"]).await.contains("cluster_state:fail")
    })
    .await;
    for _ in 0..5 {
        connect(&format!("redis+cluster://{},{}?wait=poll", hangs.addr(), master.addr())).await;
    }
    hangs.cont();
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn connections_that_work_are_used_also_when_the_map_cannot_be_read_again() {
    let cluster = RedisCluster::start().await.unwrap();
    let (is_open, knocks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (opens, knocked) = (Arc::clone(&is_open), Arc::clone(&knocks));
    let dial = routed(move |purpose, to| {
        let is_let_in = purpose != Use::Commands || opens.load(Ordering::Relaxed);
        knocked.fetch_add(usize::from(purpose == Use::Commands), Ordering::Relaxed);
        ready(if is_let_in { Ok(to) } else { Err((redis::ErrorKind::Io, "shut").into()) })
    });
    let locks = RedisConfig::from_url(&cluster.url()).unwrap().dial(dial).connect().await.unwrap();
    let (broken, works) = (name_on(&cluster, 0).await, name_on(&cluster, 1).await);
    for name in [&broken, &works] {
        give_back(take(&locks, name).await).await;
    }
    is_open.store(false, Ordering::Relaxed);
    cluster.masters()[0].call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    assert!(locks.mutex(&broken).acquire().await.is_err());
    let mut needs_no_map = false;
    for _ in 0..20 {
        // Others may still be after the one that broke.
        let before = knocks.load(Ordering::Relaxed);
        give_back(take(&locks, &works).await).await;
        needs_no_map |= knocks.load(Ordering::Relaxed) == before;
    }
    assert!(needs_no_map, "a connection that works is used without the map");
    is_open.store(true, Ordering::Relaxed);
    // Who reads the map, and is not polled meanwhile, holds up nobody.
    let mutex = locks.mutex(&broken);
    let mut unpolled = pin!(mutex.acquire());
    assert!(unpolled.as_mut().now_or_never().is_none());
    let other = name_on_but(&cluster, 0, &broken).await;
    give_back(acquire_in_the_end(&locks, &other).await).await;
    give_back(unpolled.await.unwrap()).await;
}
