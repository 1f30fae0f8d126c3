//! Servers that grant less than the session timeout that the guards count on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Guard, GuardState, LossReason};
use lock_testkit::{LogCapture, ZooKeeper};
use lock_zk::zookeeper_client::{Connector, Error};
use lock_zk::{DriverSession, Ensemble, SessionClient};
use tokio::time::sleep;

use crate::common::*;

/// Time: what a server allows after its restart, less than the guards count on.
const LOWERED: Duration = Duration::from_secs(2);

/// Restarts a server that allows so much from then on, with the same data.
async fn limit(server: &ZooKeeper, most: Duration) {
    server.kill();
    server.reconfigure("maxSessionTimeout", &most.as_millis().to_string()).unwrap();
    server.start_again().await.unwrap();
}

async fn until_confirmed(guard: &Guard) {
    until("the session is confirmed", async || guard.verify().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_lost_before_a_server_with_a_lower_limit_ends_its_session() {
    let server = ZooKeeper::start().await.unwrap();
    let scene = Scene::at(server.into(), TIMEOUT, |config| config).await;
    let guard = take(&scene.locks, "a").await;
    limit(&scene.server, LOWERED).await;
    until_confirmed(&guard).await;
    scene.black_hole(true);
    let next = take(&scene.other, "a").await;
    assert!(!guard.is_valid(), "two valid guards, for {:?}", guard.validity().remaining());
    give_back(next).await;
}

#[tokio::test]
async fn a_lower_limit_ends_the_session_and_the_next_one_goes_by_it() {
    let (log, _capture) = LogCapture::begin();
    let server = ZooKeeper::start().await.unwrap();
    // Longer than a restart takes on a busy machine.
    let locks = opened(&config(&server).session_timeout(LASTING)).await;
    let guard = take(&locks, "a").await;
    limit(&server, LOWERED).await;
    assert_eq!(soon(guard.lost()).await, LossReason::SessionEnded);
    assert_eq!(log.warnings("the session ends and its locks are lost").len(), 1);
    // The old node is deleted at once, and not a session timeout later.
    let next = take(&locks, "a").await;
    assert!(next.validity().remaining() < LOWERED);
    drop(next);
}

/// One of two servers has been restarted with a lower limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: an ensemble"]
async fn a_session_never_moves_to_a_server_with_a_lower_limit() {
    let servers = ensemble().await;
    let [lowered, other] = [0, 1].map(|at| proxy(&servers.nodes()[at]));
    limit(&servers.nodes()[0], LOWERED).await;
    lowered.refuse(true);
    let hosts = format!("{},{}", lowered.addr(), other.addr());
    let locks = opened(&config_of(hosts).session_timeout(LONG)).await;
    let guard = take(&locks, "a").await;
    lowered.refuse(false);
    for _ in 0..8 {
        other.rst();
        until_confirmed(&guard).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    }
    // While the other one is away, the session waits for it.
    other.refuse(true);
    other.rst();
    sleep(LONG / 4).await; // Time: it would have moved.
    assert!(guard.is_valid());
    other.refuse(false);
    give_back(guard).await;
    drop(locks);
    limit(&servers.nodes()[0], LASTING).await;
}

/// A host name that leads to one server first, and to another one afterwards.
#[derive(Debug)]
struct Ambiguous {
    servers: [SocketAddr; 2],
    /// How many connections go to the first one.
    first: Arc<AtomicUsize>,
}

#[async_trait]
impl Ensemble for Ambiguous {
    async fn open(&self, session_timeout: Duration) -> Result<Arc<dyn SessionClient>, Error> {
        let (servers, first) = (self.servers, Arc::clone(&self.first));
        let connect = move |connector: Connector, _| {
            let is_first = first.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
            let host = servers[usize::from(!is_first)].to_string();
            async move { connector.connect(&host).await }
        };
        Ok(Arc::new(DriverSession::open("zookeeper", session_timeout, connect).await?))
    }
}

/// It is found out only by the move itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: an ensemble"]
async fn a_session_that_has_moved_to_a_server_with_a_lower_limit_ends() {
    let servers = ensemble().await;
    let first = proxy(&servers.nodes()[0]);
    limit(&servers.nodes()[1], LOWERED).await;
    // The opening, and the look at the limit.
    let (left, hosts) = (Arc::new(AtomicUsize::new(2)), [first.addr(), servers.nodes()[1].addr()]);
    let ensemble = Arc::new(Ambiguous { servers: hosts, first: Arc::clone(&left) });
    let locks = opened(&config(&servers.nodes()[0]).session_timeout(LASTING).ensemble(ensemble)).await;
    let guard = take(&locks, "a").await;
    first.rst();
    assert_eq!(soon(guard.lost()).await, LossReason::SessionEnded);
    assert_eq!(left.load(SeqCst), 0);
    // The session is closed, long before it would end.
    let other = connect(&servers.nodes()[2]).await;
    give_back(take(&other, "a").await).await;
    drop((guard, locks, other));
    limit(&servers.nodes()[1], LASTING).await;
}
