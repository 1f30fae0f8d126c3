//! Many tasks at once, each with a lock of its own.

use futures_util::future::join_all;
use futures_util::poll;
use lock_core::ErrorKind;
use lock_testkit::proxy::Direction;
use lock_testkit::{by_tier, crowd, ended};
use lock_zk::ZkConfig;
use tokio::runtime;
use tokio::time::timeout;

use crate::common::*;

/// With the defaults, whose timeouts are shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_grants_the_locks_of_a_crowd() {
    let (server, tasks) = (server().await, by_tier(1_000, 2_000, 20_000));
    let locks = ZkConfig::new(server.connect_string()).connect().await.unwrap();
    let (guards, error) = crowd(&locks, tasks).await;
    // A machine that stands still for a session timeout ends a session, and with it locks that were granted.
    assert!(guards.len() * 100 >= tasks * 95, "{} of {tasks}: {error:?}", guards.len());

    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(4 * LASTING, join_all(released)).await.expect("all of them end");
    for error in released.into_iter().filter_map(|released| released.unwrap().err()) {
        // On a busy host; the release goes on in the background.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    until("no node is left", async || server.mntr().await.unwrap()["zk_ephemerals_count"] == "0").await;
}

/// Most of it has sent nothing, and so nothing is to be taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_gives_up_costs_the_server_only_what_was_sent() {
    let scene = Scene::with(LASTING, Default::default()).await;
    let (locks, proxy) = (&scene.locks, &scene.proxy);
    give_back(take(locks, "first").await).await;
    proxy.reset_counters();
    // A turn is waited for in vain for a sixth of the session timeout.
    proxy.hold(Direction::ToClient);
    let mutexes: Vec<_> = (0..1000).map(|task| locks.mutex(format!("lock/{task}"))).collect();
    let mut acquired: Vec<_> = mutexes.iter().map(|mutex| Box::pin(mutex.acquire())).collect();
    for acquired in &mut acquired {
        assert!(poll!(acquired.as_mut()).is_pending());
    }
    until("some are sent", async || proxy.requests() >= 64).await;
    drop(acquired);
    proxy.deliver();
    timeout(2 * LASTING, locks.backend().settle()).await.expect("the roll-backs end");
    give_back(take(locks, "next").await).await;
    assert!(proxy.requests() < 700, "{} for 1000 acquisitions", proxy.requests());
}

/// Most of the deletions wait for a turn as it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_that_outlive_their_runtime_leave_nothing() {
    let scene = Scene::with(LASTING, Default::default()).await;
    let (locks, proxy) = (scene.locks.clone(), &scene.proxy);
    let of_its_own = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let guards = come(of_its_own.spawn(async move { crowd(&locks, 200).await.0 })).await;
    assert_eq!(guards.len(), 200);
    proxy.hold(Direction::ToClient);
    proxy.reset_counters();
    for guard in guards {
        of_its_own.spawn(guard.release());
    }
    until("some are sent", async || proxy.requests() >= 64).await;
    ended(of_its_own);
    proxy.deliver();
    let left = async || scene.server.mntr().await.unwrap()["zk_ephemerals_count"].clone();
    until("no node is left", async || left().await == "0").await;
}
