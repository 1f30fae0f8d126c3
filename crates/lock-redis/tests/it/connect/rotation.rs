//! Passwords of several servers that change while locks are held and waited for.

use lock_core::{ErrorKind, Guard, Locks};
use lock_testkit::{
    RedisCluster, RedisSentinel, RedisServer, SecretFile, give_back, hand_over, is_renewed, queue_up, take,
    until,
};
use tokio::task::JoinHandle;

use crate::common::connect;

/// Gives the user this password, and no other, and ends all connections but those of replicas and of the test.
async fn rotate(server: &RedisServer, password: &str) {
    let rules = format!("ACL SETUSER worker on resetpass >{password} ~* &* +@all");
    server.call(&rules.split(' ').collect::<Vec<_>>()).await;
    for kind in ["normal", "pubsub"] {
        server.call(&["CLIENT", "KILL", "TYPE", kind]).await;
    }
}

async fn held_and_awaited(locks: &Locks) -> (Guard, JoinHandle<Guard>) {
    (take(locks, "a").await, queue_up(locks, "a").await)
}

/// The lease is extended, the waiter gets the lock, and others can be acquired.
async fn goes_on(locks: &Locks, (guard, waiter): (Guard, JoinHandle<Guard>)) {
    is_renewed(&guard).await;
    give_back(hand_over(guard, waiter).await).await;
    give_back(take(locks, "b").await).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn the_nodes_of_a_cluster_get_the_password_of_the_moment() {
    let (cluster, secret) = (RedisCluster::start().await.unwrap(), SecretFile::new("one"));
    let rotate_all = async |password: &str| {
        secret.change(password);
        for server in cluster.masters() {
            rotate(server, password).await;
        }
    };
    rotate_all("one").await;
    let url = cluster.url().replace("//", "//worker@");
    let locks = connect(&format!("{url}?ttl=6s&password_file={secret}")).await;
    let pair = held_and_awaited(&locks).await;
    rotate_all("two").await;
    goes_on(&locks, pair).await;
}

#[tokio::test]
#[ignore = "full: sentinels and clusters"]
async fn sentinels_and_their_master_have_passwords_of_their_own() {
    let sentinel = RedisSentinel::start().await.unwrap();
    let (ours, theirs) = (SecretFile::new("one"), SecretFile::new("uno"));
    let rotate_all = async |password: &str, of_sentinels: &str| {
        ours.change(password);
        theirs.change(of_sentinels);
        for (servers, password) in [(sentinel.servers(), password), (sentinel.sentinels(), of_sentinels)] {
            for server in servers {
                rotate(server, password).await;
            }
        }
    };
    rotate_all("one", "uno").await;
    let url = sentinel.url().replace("//", "//worker@");
    let files = format!("password_file={}&sentinel_user=worker&sentinel_password_file={}", ours, theirs);
    let locks = connect(&format!("{url}?ttl=6s&{files}")).await;
    let pair = held_and_awaited(&locks).await;
    rotate_all("two", "due").await;
    goes_on(&locks, pair).await;
    // The sentinels are asked once more.
    sentinel.servers()[0].kill();
    until("the next master grants locks", async || match locks.mutex("c").acquire().await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    })
    .await;
}
