//! Locks that count only once replicas have them: `wait_replicas`.

use lock_core::{ErrorKind, Outcome};
use lock_testkit::{RedisServer, cancel_after, for_each_poll_count, give_back, take};

use crate::common::dial::Record;
use crate::common::{RECIPES, acquire_in_the_end, client, nothing_is_left, until_info};

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_lock_can_wait_for_replicas() {
    for recipe in RECIPES {
        let master = RedisServer::start().await.unwrap();
        let replica = master.replica().await.unwrap();
        let locks = client(&master, &format!("wait_replicas=1&wait_replicas_timeout=5s&{recipe}")).await;
        for _ in 0..20 {
            let guard = take(&locks, "a").await;
            assert!(replica.has_key("lock:a").await);
            give_back(guard).await;
        }

        replica.stop();
        let mutex = locks.mutex("a");
        let waiting = tokio::spawn(async move { mutex.acquire().await });
        until_info(&master, "clients", "blocked_clients:1").await;
        // The connection that all share is not held up meanwhile.
        assert!(locks.inspect("a").await.unwrap().is_held());
        assert!(!waiting.is_finished());
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("0 of 1 replicas"), "{error}");
        assert!(!master.has_key("lock:a").await, "not released");
        replica.cont();
        give_back(acquire_in_the_end(&locks, "a").await).await;
    }
}

/// As by a server or a proxy that has a time limit for those.
#[tokio::test]
#[ignore = "full: several servers"]
async fn a_connection_for_replicas_that_was_closed_while_it_was_idle_is_replaced() {
    let master = RedisServer::start().await.unwrap();
    let _replica = master.replica().await.unwrap();
    let locks = client(&master, "wait_replicas=1&wait_replicas_timeout=5s").await;
    give_back(take(&locks, "a").await).await;
    assert_eq!(kill(&master, "cmd=wait").await, 1);
    give_back(take(&locks, "a").await).await;
}

/// Closes the connections whose last command was this one.
async fn kill(server: &RedisServer, command: &str) -> usize {
    let clients = server.text(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let mut killed = 0;
    for client in clients.lines().filter(|client| client.contains(command)) {
        let id = client.split([' ', '=']).nth(1).unwrap();
        server.call(&["CLIENT", "KILL", "ID", id]).await;
        killed += 1;
    }
    killed
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn replicas_are_waited_for_at_the_master_that_is_in_use() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let _replica = new.replica().await.unwrap();
    let record = Record::of(&old);
    let locks = record.connect(&format!("{}?wait_replicas=1&wait_replicas_timeout=5s", old.url())).await;
    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    until_info(&old, "clients", "blocked_clients:1").await;
    // The old one lives on, and is left meanwhile.
    record.moves_to(&new);
    kill(&old, "cmd=evalsha").await;
    locks.inspect("b").await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    for _ in 0..2 {
        let guard = take(&locks, "b").await;
        assert!(new.has_key("lock:b").await);
        give_back(guard).await;
    }
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn a_lock_that_is_gone_before_replicas_have_it_is_asked_for_again() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let record = Record::of(&old);
    // Time: no replica will ever have it.
    let locks = record.connect(&format!("{}?wait_replicas=1&wait_replicas_timeout=100ms", old.url())).await;
    // The old one grants it, and the new one does not know of it.
    record.moves_to(&new);
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied), "{error}");
    for server in [&old, &new] {
        nothing_is_left(server).await;
    }
}

#[tokio::test]
#[ignore = "full: several servers"]
async fn an_acquisition_that_waits_for_replicas_can_be_dropped() {
    let master = RedisServer::start().await.unwrap();
    for recipe in RECIPES {
        // Time: no replica will ever have it, so every attempt ends with an error at the latest.
        let locks = client(&master, &format!("wait_replicas=1&wait_replicas_timeout=300ms&{recipe}")).await;
        for_each_poll_count(async |polls| {
            let ended = cancel_after(polls, locks.mutex("a").acquire()).await;
            nothing_is_left(&master).await;
            ended
        })
        .await;
    }
}
