//! Servers that grant less than the session timeout that the guards count on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::*;
use async_trait::async_trait;
use lock_core::{GuardState, LossReason, Released};
use lock_testkit::{LogCapture, ZooKeeper};
use lock_zk::zookeeper_client::{Connector, Error};
use lock_zk::{DriverSession, Ensemble, SessionClient, ZkConfig};
use tokio::time::timeout;

/// What a server allows after its restart.
const LOWERED: Duration = Duration::from_millis(800);
const SOON: Duration = Duration::from_secs(20);

/// Restarts a server that allows less from then on, with the same data.
async fn lower_limit(server: &ZooKeeper) {
    server.kill();
    server.reconfigure("maxSessionTimeout", &LOWERED.as_millis().to_string()).unwrap();
    server.start_again().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_is_lost_before_a_server_with_a_lower_limit_ends_its_session() {
    let scene = Scene::restartable().await;
    let guard = scene.locks.mutex("a").acquire().await.unwrap();
    lower_limit(&scene.server).await;
    let reconnected = async { while guard.verify().await.is_err() {} };
    timeout(SOON, reconnected).await.unwrap();
    scene.black_hole(true);
    let next = scene.other.mutex("a").try_acquire_for(SOON).await.unwrap().unwrap();
    assert!(!guard.is_valid(), "two valid guards, for {:?}", guard.validity().remaining());
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_lower_limit_ends_the_session_and_the_next_one_goes_by_it() {
    let (log, _capture) = LogCapture::begin();
    let server = ZooKeeper::start().await.unwrap();
    // Longer than a restart takes on a busy machine.
    let locks = config(&server).session_timeout(2 * SOON).connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    lower_limit(&server).await;
    assert_eq!(timeout(2 * SOON, guard.lost()).await.unwrap(), LossReason::SessionEnded);
    assert_eq!(log.warnings("the session ends and its locks are lost").len(), 1);
    // The old node is deleted at once, and not a session timeout later.
    let next = timeout(SOON, locks.mutex("a").acquire()).await.unwrap().unwrap();
    assert!(next.validity().remaining() < LOWERED);
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

/// One of two servers has been restarted with a lower limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: an ensemble"]
async fn a_session_never_moves_to_a_server_with_a_lower_limit() {
    let servers = Servers::start().await;
    let [lowered, other] = [0, 1].map(|at| proxy(&servers.nodes()[at]));
    lower_limit(&servers.nodes()[0]).await;
    lowered.refuse(true);
    let hosts = format!("{},{}", lowered.addr(), other.addr());
    let locks = opened(&ZkConfig::new(hosts).session_timeout(LONG).private_session(true)).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    lowered.refuse(false);
    for _ in 0..8 {
        other.rst();
        let confirmed = async {
            while !matches!(guard.verify().await, Ok(GuardState::Valid)) {
                assert!(guard.is_valid());
            }
        };
        timeout(SOON, confirmed).await.unwrap();
    }
    // While the other one is away, the session waits for it.
    other.refuse(true);
    other.rst();
    tokio::time::sleep(LONG / 4).await;
    assert!(guard.is_valid());
    other.refuse(false);
    assert_eq!(timeout(SOON, guard.release()).await.unwrap().unwrap(), Released::Released);
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
    let servers = Servers::start().await;
    let first = proxy(&servers.nodes()[0]);
    lower_limit(&servers.nodes()[1]).await;
    // The opening, and the look at the limit.
    let (left, hosts) = (Arc::new(AtomicUsize::new(2)), [first.addr(), servers.nodes()[1].addr()]);
    let ensemble = Arc::new(Ambiguous { servers: hosts, first: Arc::clone(&left) });
    let config = config(&servers.nodes()[0]).session_timeout(LONG).ensemble(ensemble);
    let locks = config.connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    first.rst();
    assert_eq!(timeout(SOON, guard.lost()).await.unwrap(), LossReason::SessionEnded);
    assert_eq!(left.load(SeqCst), 0);
    let next = connect(&servers.nodes()[2]).await.mutex("a").try_acquire_for(LONG / 2).await.unwrap();
    assert_eq!(next.expect("the session is closed").release().await.unwrap(), Released::Released);
}
