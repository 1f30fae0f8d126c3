//! A master that was a replica for a while has the data of another server.

use lock_core::Locks;
use lock_testkit::{RedisFive, RedisServer, take, until};

use crate::common::{PATIENT, client, holder, run};

/// A holder on the first three masters, and another client.
async fn held_by_three(masters: &RedisFive) -> (lock_core::Guard, [Locks; 2]) {
    let options = format!("ttl=60s&{PATIENT}");
    let locks = [client(masters, &options).await, client(masters, &options).await];
    for master in &masters.servers()[3..] {
        run(master, "SET lock:a theirs").await;
    }
    let guard = take(&locks[0], "a").await;
    for master in &masters.servers()[..3] {
        until("it is granted", async || holder(master).await == Some(guard.owner().to_string())).await;
    }
    (guard, locks)
}

/// Replaces the data of a master by those of another server.
async fn replicate(master: &RedisServer, other: &RedisServer) {
    run(master, &format!("REPLICAOF 127.0.0.1 {}", other.port())).await;
    until("it has the data of the other server", async || {
        let info = run(master, "INFO replication").await;
        info.text().is_some_and(|info| info.contains("master_link_status:up"))
    })
    .await;
}

async fn does_not_win(masters: &RedisFive, guard: &lock_core::Guard, other: &Locks) {
    for master in &masters.servers()[3..] {
        run(master, "DEL lock:a").await;
    }
    let second = other.mutex("a").try_acquire().await;
    assert!(guard.is_valid() && !matches!(second, Ok(Some(_))), "two hold the lock");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_seen_as_a_replica_does_not_vote() {
    let (five, empty) = (RedisFive::start().await.unwrap(), RedisServer::start().await.unwrap());
    let (guard, [_, other]) = held_by_three(&five).await;
    let first = &five.servers()[0];
    replicate(first, &empty).await;
    drop(take(&other, "b").await);
    until("it is seen as a replica", async || {
        other.doctor().await.unwrap().to_string().contains("read-only replica")
    })
    .await;
    run(first, "REPLICAOF NO ONE").await;
    // Whatever it says of its history.
    until("it is a master again", async || {
        !other.doctor().await.unwrap().to_string().contains("read-only replica")
    })
    .await;
    does_not_win(&five, &guard, &other).await;
}

/// Sentinels end the connections of a server whose role they change.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_a_replica_between_two_connections_does_not_vote() {
    let (five, empty) = (RedisFive::start().await.unwrap(), RedisServer::start().await.unwrap());
    let (guard, [_, other]) = held_by_three(&five).await;
    let first = &five.servers()[0];
    replicate(first, &empty).await;
    run(first, "REPLICAOF NO ONE").await;
    run(first, "CLIENT KILL TYPE normal").await;
    does_not_win(&five, &guard, &other).await;
}
