//! The server that granted a lock is lost, and another one is there in its place: on one Redis, and on five.

use lock_testkit::proxy::{Direction, Protocol};
use lock_testkit::{FaultProxy, RedisFive, RedisServer, give_back, is_renewed, soon, take, until};
use polylock::Locks;

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_whose_replica_is_promoted_has_two_holders() {
    let (master, replica) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let link = FaultProxy::start(master.addr(), Protocol::Opaque).unwrap();
    replica.call(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]).await;
    let before = Locks::connect(&master.url()).await.unwrap();
    give_back(take(&before, "a").await).await;
    let follows = async || master.command(&["WAIT", "1", "100"]).await.unwrap().int() == Some(1);
    until("the replica follows", follows).await;

    // The lock is granted, and is still on its way to the replica when the master dies.
    link.black_hole(Direction::ToClient, true);
    let first = take(&before, "a").await;
    master.kill();
    replica.call(&["REPLICAOF", "NO", "ONE"]).await;
    let after = Locks::connect(&replica.url()).await.unwrap();
    let second = soon(after.mutex("a").try_acquire()).await.unwrap();
    assert!(second.is_some() && first.is_valid(), "the promoted replica knows nothing of the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_of_which_one_is_lost_have_one_holder() {
    let five = RedisFive::start().await.unwrap();
    let connect = async || Locks::connect(&format!("{}?ttl=10s", five.url())).await.unwrap();
    let (before, other) = (connect().await, connect().await);
    let first = take(&before, "a").await;

    // One of them comes back without what it had granted, as a promoted replica does.
    five.servers()[0].restart().await.unwrap();
    assert!(!five.servers()[0].has_key("lock:a").await);
    let newcomer = connect().await;
    // The other four renew it.
    for _ in 0..2 {
        for locks in [&other, &newcomer] {
            let second = soon(locks.mutex("a").try_acquire()).await;
            assert!(!matches!(second, Ok(Some(_))), "two holders");
        }
        is_renewed(&first).await;
    }
    give_back(first).await;
    assert!(soon(other.mutex("a").try_acquire()).await.unwrap().is_some());
}
