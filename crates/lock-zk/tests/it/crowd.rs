//! Many tasks at once, each with a lock of its own.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use lock_core::ErrorKind;
use lock_testkit::proxy::Direction;
use lock_testkit::{by_tier, crowd, until};
use lock_zk::ZkConfig;
use tokio::time::{Instant, timeout};

use crate::common::{opened, proxy, server, through};

const PATIENCE: Duration = Duration::from_secs(120);

/// With the defaults, whose timeouts are shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_grants_the_locks_of_a_crowd() {
    let (server, tasks) = (server().await, by_tier(1_000, 2_000, 20_000));
    let locks = ZkConfig::new(server.connect_string()).connect().await.unwrap();
    let began = Instant::now();
    let (guards, error) = crowd(&locks, tasks).await;
    let took = began.elapsed();
    // On a busy host a session may end.
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    assert!(valid * 100 >= tasks * 95, "{valid} of {tasks} in {took:?}: {error:?}");

    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(PATIENCE, join_all(released)).await.expect("all of them end");
    for error in released.into_iter().filter_map(|released| released.unwrap().err()) {
        // On a busy host; the release goes on in the background.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    until("a node is left", async || server.mntr().await.unwrap()["zk_ephemerals_count"] == "0").await;
}

/// Most of it has sent nothing, and so nothing is to be taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_gives_up_costs_the_server_only_what_was_sent() {
    let server = server().await;
    let proxy = proxy(&server);
    // A turn is waited for in vain for a sixth of it.
    let locks = opened(&through(&proxy).session_timeout(Duration::from_secs(40))).await;
    locks.mutex("first").acquire().await.unwrap().release().await.unwrap();
    proxy.reset_counters();
    proxy.hold(Direction::ToClient);
    let mutexes: Vec<_> = (0..1000).map(|task| locks.mutex(format!("lock/{task}"))).collect();
    let mut acquired: Vec<_> = mutexes.iter().map(|mutex| Box::pin(mutex.acquire())).collect();
    for acquired in &mut acquired {
        assert!(poll!(acquired.as_mut()).is_pending());
    }
    until("some are sent", async || proxy.requests() >= 64).await;
    drop(acquired);
    proxy.deliver();
    timeout(PATIENCE, locks.backend().settle()).await.expect("the roll-backs end");
    locks.mutex("next").acquire().await.unwrap().release().await.unwrap();
    assert!(proxy.requests() < 700, "{} for 1000 acquisitions", proxy.requests());
}
