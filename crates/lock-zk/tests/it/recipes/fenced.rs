//! Writes that take effect only while the lock is held.

use futures_util::future::{join, join_all};
use futures_util::poll;
use lock_core::{ErrorKind, Guard, GuardState, LossReason, MemoryConfig, Outcome, Released, Token};
use lock_testkit::proxy::Direction;
use lock_zk::zookeeper_client::{Acls, Client, CreateMode, Error};
use lock_zk::{Committed, FencedExt, ZkConfig, ZkLayout};
use tokio::time::sleep;

use crate::common::*;

fn is_applied(committed: &Committed) -> bool {
    matches!(committed, Committed::Applied(_))
}

async fn data(client: &Client, path: &str) -> Vec<u8> {
    client.get_data(path).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_take_effect_all_or_not_at_all() {
    let scene = Scene::new().await;
    let other = &scene.client;
    mkdir(other, "/orders").await;
    let guard = take(&scene.locks, "a").await;
    let made = guard.fenced().unwrap().create("/orders/1", "new").create("/orders/2", "new").commit().await;
    let Committed::Applied(results) = made.unwrap() else { panic!("nothing is in the way") };
    assert_eq!(results.len(), 2, "one for each");
    let all = guard.fenced().unwrap();
    let all = all.check("/orders", None).set("/orders/1", "paid", Some(0)).delete("/orders/2", None);
    assert!(is_applied(&all.commit().await.unwrap()));
    assert_eq!(data(other, "/orders/1").await, b"paid");
    assert!(other.check_stat("/orders/2").await.unwrap().is_none());

    let none = guard.fenced().unwrap().create("/orders/3", "new").set("/orders/1", "again", Some(0));
    match none.commit().await.unwrap() {
        Committed::Refused { index, error } => assert_eq!((index, error), (1, Error::BadVersion)),
        committed => panic!("{committed:?}"),
    }
    assert!(other.check_stat("/orders/3").await.unwrap().is_none());
    assert!(is_applied(&guard.fenced().unwrap().commit().await.unwrap()), "nothing to write");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_writer_that_became_a_reader_is_known_by_its_new_node() {
    let scene = Scene::new().await;
    let (lock, other) = (scene.locks.rw("a"), &scene.client);
    mkdir(other, "/order").await;
    let mut guard = lock.write().await.unwrap();
    guard.downgrade().await.unwrap();
    assert!(is_applied(&guard.fenced().unwrap().set("/order", "read", None).commit().await.unwrap()));
    let floor = Token::new(guard.token().get() + 1_000_000);
    guard.raise_token(floor).await.unwrap();
    let reader = lock.read().await.unwrap();
    assert!(reader.token() > floor && guard.token() < floor);
    give_back(reader).await;
    let writes = guard.fenced().unwrap().set("/order", "late", None);
    delete_node(other, 0).await;
    assert_eq!(writes.commit().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.raise_token(floor).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(data(other, "/order").await, b"read");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_that_is_lost_writes_nothing() {
    let scene = Scene::new().await;
    let (proxy, other) = (&scene.proxy, &scene.client);
    mkdir(other, "/order").await;
    let guard = take(&scene.locks, "a").await;
    // The writes are on their way when another client gets the lock.
    proxy.hold(Direction::ToServer);
    let writing = async {
        let late = guard.fenced().unwrap().set("/order", "late", None).commit().await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    };
    let losing = async {
        until("they are sent", async || proxy.queued(Direction::ToServer) > 0).await;
        delete_node(other, 0).await;
        proxy.deliver();
    };
    tokio::join!(writing, losing);
    assert_eq!(data(other, "/order").await, b"");
    assert_eq!(guard.state(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.fenced().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

/// The ensemble checks the node, which tasks that pass the lock on have in common.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_next_task_gets_the_lock_after_the_writes_that_were_given_up() {
    let scene = Scene::with(LASTING, ZkLayout::Curator).await;
    let (proxy, other) = (&scene.proxy, &scene.client);
    mkdir(other, "/order").await;
    let (mutex, guard) = (scene.locks.mutex("a"), take(&scene.locks, "a").await);
    // Answered, they are no reason to ask the ensemble.
    assert!(is_applied(&guard.fenced().unwrap().set("/order", "first", None).commit().await.unwrap()));
    let mut next = Box::pin(mutex.acquire());
    assert!(poll!(&mut next).is_pending(), "the lock is held");
    let owner = guard.owner();
    give_back(guard).await;
    let guard = next.await.unwrap();
    assert_eq!(guard.owner(), owner, "passed on");

    proxy.hold(Direction::ToServer);
    // Longer than any heartbeat.
    let late = "late".repeat(1_000);
    let mut writing = Box::pin(guard.fenced().unwrap().set("/order", &*late, None).commit());
    until("they are sent", async || {
        assert!(poll!(&mut writing).is_pending(), "its answer is held up");
        proxy.queued(Direction::ToServer) >= late.len()
    })
    .await;
    drop(writing);
    let mut next = Box::pin(mutex.acquire());
    assert!(poll!(&mut next).is_pending(), "the lock is held");
    let mut release = Box::pin(guard.release());
    assert!(poll!(&mut release).is_pending() && poll!(&mut next).is_pending(), "the writes are on their way");
    proxy.deliver();
    let (released, next) = soon(join(release, next)).await;
    assert_eq!(released.unwrap(), Released::Released);
    assert_eq!(data(other, "/order").await, late.as_bytes());
    let next = next.unwrap();
    assert_ne!(next.owner(), owner, "passed on with writes on their way");
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_ended_writes_nothing() {
    let scene = Scene::with(SHORT, ZkLayout::Curator).await;
    mkdir(&scene.client, "/order").await;
    let guard = take(&scene.locks, "a").await;
    let writes = guard.fenced().unwrap().set("/order", "late", None);
    scene.black_hole(true);
    until_children(&scene.client, "a", 0).await;
    scene.proxy.heal();
    assert_eq!(writes.commit().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(data(&scene.client, "/order").await, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_cannot_be_fenced_is_reported() {
    let scene = Scene::new().await;
    let memory = MemoryConfig::new().connect().unwrap();
    let plain = opened(&config(&scene.server).layout(ZkLayout::Plain)).await;
    for locks in [memory, plain] {
        let guard = take(&locks, "a").await;
        assert_eq!(guard.fenced().unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let read_only = CreateMode::Persistent.with_acls(Acls::anyone_read());
    scene.client.create("/theirs", b"", &read_only).await.unwrap();
    let guard = take(&scene.locks, "b").await;
    let error = guard.fenced().unwrap().set("/theirs", "ours", None).commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("/theirs"), "{error}");
    let error = guard.fenced().unwrap().set("no/path", "", None).commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}

/// A server ends the connection at a request that is too large, and with it heartbeats of all locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_no_server_reads_are_refused_and_cost_no_other_lock() {
    let scene = Scene::new().await;
    let (locks, other) = (&scene.locks, &scene.client);
    mkdir(other, "/order").await;
    let mut held = Vec::new();
    for name in 0..10 {
        held.push(take(locks, &format!("held/{name}")).await);
    }
    let fits = vec![0; ZkConfig::JUTE_MAXBUFFER - 500];
    assert!(is_applied(&held[0].fenced().unwrap().set("/order", fits, None).commit().await.unwrap()));
    let large = vec![1; 1_500_000];
    let writing = (0..3).map(async |name| {
        let guard = take(locks, &format!("writes/{name}")).await;
        for _ in 0..60 {
            let error = guard.fenced().unwrap().set("/order", &*large, None).commit().await.unwrap_err();
            let outcome = (error.kind(), error.outcome());
            assert_eq!(outcome, (ErrorKind::Unsupported, Outcome::NotApplied), "{error}");
            assert!(error.to_string().contains("jute.maxbuffer"), "{error}");
            // Time: for as long as a session lasts, so that no heartbeat would have passed.
            sleep(TIMEOUT / 60).await;
        }
        give_back(guard).await;
    });
    join_all(writing).await;
    assert!(held.iter().all(Guard::is_valid));
    assert_eq!(data(other, "/order").await.first(), Some(&0));
    for guard in held {
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_bytes_of_writes_are_under_way_in_the_session_of_the_locks() {
    let scene = Scene::with(LASTING, ZkLayout::Curator).await;
    let (proxy, names, mut guards) = (&scene.proxy, ["a", "b", "c"], Vec::new());
    for name in names {
        mkdir(&scene.client, &format!("/{name}")).await;
        guards.push(take(&scene.locks, name).await);
    }
    proxy.hold(Direction::ToServer);
    let large = vec![b'x'; 600_000];
    let write = async |at: usize| {
        let guard: &Guard = &guards[at];
        guard.fenced().unwrap().set(format!("/{}", names[at]), &*large, None).commit().await
    };
    let mut first = Box::pin(write(0));
    assert!(poll!(first.as_mut()).is_pending());
    until("it is under way", async || proxy.queued(Direction::ToServer) > large.len()).await;
    // Given up, it is under way nevertheless.
    drop(first);
    let mut rest = Box::pin(join(write(1), write(2)));
    assert!(poll!(rest.as_mut()).is_pending());
    settled().await;
    assert!(poll!(rest.as_mut()).is_pending());
    assert!(proxy.queued(Direction::ToServer) < large.len() * 3 / 2, "two are under way");
    proxy.deliver();
    let (second, third) = rest.await;
    assert!(is_applied(&second.unwrap()) && is_applied(&third.unwrap()));
    for name in names {
        let path = format!("/{name}");
        until("it is applied", async || data(&scene.client, &path).await.len() == large.len()).await;
    }
    for guard in guards {
        give_back(guard).await;
    }
}
