//! A real etcd: one member and three, of which some are killed or paused.

use lock_core::Locks;
use lock_kv::EtcdConfig;
use lock_testkit::{EtcdCluster, EtcdServer, hand_over, queue_up, take};

async fn connect(url: &str) -> Locks {
    EtcdConfig::from_url(url).unwrap().connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_tokens_outlive_a_restart() {
    if EtcdServer::is_missing() {
        return;
    }
    let server = EtcdServer::start().await.unwrap();
    let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = take(&one, "a").await;
    let token = guard.token();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    server.kill();
    server.start_again().await.unwrap();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "it is held");
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert!(take(&other, "a").await.token() > token);
}
