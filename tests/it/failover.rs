//! The server that granted a lock is lost, and another one is there in its place: on one Redis, and on five.

use std::time::Duration;

use lock_core::Locks;
use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{FaultProxy, RedisFive, RedisServer, until};
use polylock::{RedisConfig, RedlockConfig};
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

async fn redlock(five: &RedisFive) -> Locks {
    RedlockConfig::from_url(&format!("{}?ttl=10s", five.url())).unwrap().connect().await.unwrap()
}

async fn redis(server: &RedisServer) -> Locks {
    RedisConfig::from_url(&format!("{}?ttl=10s", server.url())).unwrap().connect().await.unwrap()
}

/// Waits until the replica has everything so far.
async fn is_in_step(master: &RedisServer) {
    until("the replica does not follow", async || {
        master.command(&["WAIT", "1", "100"]).await.unwrap().int() == Some(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_whose_replica_is_promoted_has_two_holders() {
    let master = RedisServer::start().await.unwrap();
    let line = FaultProxy::start(master.addr(), Protocol::Opaque).unwrap();
    let replica = RedisServer::start().await.unwrap();
    replica.command(&["REPLICAOF", "127.0.0.1", &line.port().to_string()]).await.unwrap();
    let before = redis(&master).await;
    before.mutex("a").acquire().await.unwrap().release().await.unwrap();
    is_in_step(&master).await;

    // The lock is granted, and is still on its way to the replica when the master dies.
    line.black_hole(Direction::ToClient, true);
    let first = before.mutex("a").acquire().await.unwrap();
    master.kill();
    replica.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();

    let second = timeout(PATIENCE, redis(&replica).await.mutex("a").try_acquire()).await.unwrap().unwrap();
    assert!(second.is_some(), "the promoted replica knows nothing of the lock");
    assert!(first.is_valid(), "and the guard of its first holder is valid");
    println!("one Redis and a replica that is promoted: two holders");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_of_which_one_is_lost_have_one_holder() {
    let five = RedisFive::start().await.unwrap();
    let (before, other) = (redlock(&five).await, redlock(&five).await);
    let first = before.mutex("a").acquire().await.unwrap();

    // One of them comes back without what it had granted, as a promoted replica does.
    five.servers()[0].restart().await.unwrap();
    assert!(!five.servers()[0].has_key("lock:a").await);
    let until = Instant::now() + Duration::from_secs(5);
    let newcomer = redlock(&five).await;
    while Instant::now() < until {
        for locks in [&other, &newcomer] {
            let second = timeout(PATIENCE, locks.mutex("a").try_acquire()).await.unwrap();
            assert!(!matches!(second, Ok(Some(_))), "two holders");
        }
        assert!(first.is_valid(), "the other four renew it");
        sleep(Duration::from_millis(50)).await;
    }
    first.release().await.unwrap();
    assert!(timeout(PATIENCE, other.mutex("a").try_acquire()).await.unwrap().unwrap().is_some());
    println!("five Redis of which one is lost: one holder");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_two_of_five_hold_and_a_third_forgot_is_nobody_elses() {
    let five = RedisFive::start().await.unwrap();
    let (before, other) = (redlock(&five).await, redlock(&five).await);
    // It is granted by the first three only.
    five.servers()[3].stop();
    five.servers()[4].stop();
    let first = before.mutex("a").acquire().await.unwrap();
    before.close().await.unwrap();
    five.servers()[2].restart().await.unwrap();
    for server in &five.servers()[3..] {
        server.cont();
        // What was on its way there never arrived.
        server.command(&["DEL", "lock:a"]).await.unwrap();
    }
    let newcomer = redlock(&five).await;
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        for locks in [&other, &newcomer] {
            // The third, the fourth and the fifth are free, and would be a quorum.
            let second = timeout(PATIENCE, locks.mutex("a").try_acquire()).await.unwrap();
            assert!(!matches!(second, Ok(Some(_))), "two holders: {}", first.is_valid());
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(first.is_valid());
}
