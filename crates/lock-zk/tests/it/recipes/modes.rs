//! Readers, writers and permits among the nodes of one directory, on a server without faults.

use std::sync::{Arc, Mutex};

use futures_util::stream::{StreamExt, iter};
use lock_core::{Guard, Holder, Locks, Released};
use lock_testkit::{FaultProxy, LogCapture};
use lock_zk::ZkLayout;
use lock_zk::zookeeper_client::{Acls, Client, CreateMode};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::common::*;

/// A way to take the lock `a`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Read,
    Write,
    Permit(u32),
}

impl Way {
    pub(crate) async fn take(self, locks: &Locks) -> Guard {
        soon(async {
            match self {
                Self::Read => locks.rw("a").read().await,
                Self::Write => locks.rw("a").write().await,
                Self::Permit(max) => locks.semaphore("a", max).acquire().await,
            }
        })
        .await
        .unwrap()
    }

    /// Waits for the lock, and has its place in the queue.
    pub(crate) async fn queue_up(self, locks: &Locks, client: &Client) -> JoinHandle<Guard> {
        let (before, locks) = (children(client, "a").await.len(), locks.clone());
        let waiter = tokio::spawn(async move { self.take(&locks).await });
        until_children(client, "a", before + 1).await;
        waiter
    }
}

/// Clients whose requests go through the proxy, in one session: its heartbeats are few.
async fn clients(proxy: &FaultProxy, count: usize) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let config = through(proxy).private_session(false);
        clients.push(opened(&config.session_timeout(LASTING)).await);
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_of_other_libraries_share_and_exclude() {
    let scene = Scene::new().await;
    let (locks, client) = (&scene.locks, &scene.client);
    mkdir(client, "/locks/a").await;
    for reader in ["_c_1-__READ__", "7c9e__rlock__", "read-"] {
        let node = foreign(client, reader).await;
        assert!(locks.rw("a").try_write().await.unwrap().is_none(), "{reader}");
        assert!(locks.semaphore("a", 5).try_acquire().await.unwrap().is_none(), "{reader}");
        give_back(locks.rw("a").try_read().await.unwrap().expect(reader)).await;
        client.delete(&node, None).await.unwrap();
    }
    for other in
        ["_c_1-__WRIT__", "7c9e__lock__", "write-", "_c_1-lock-", "_c_1-lease-", "semaphore-", "thread-"]
    {
        let node = foreign(client, other).await;
        assert!(locks.rw("a").try_read().await.unwrap().is_none(), "{other}");
        assert!(locks.semaphore("a", 5).try_acquire().await.unwrap().is_none(), "{other}");
        client.delete(&node, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_wakes_its_readers_only() {
    let scene = Scene::new().await;
    let (client, proxy) = (&scene.client, &scene.proxy);
    let guard = Way::Write.take(&scene.other).await;
    let mut waiters = Vec::new();
    // Three readers, a writer, and three readers.
    for (at, locks) in clients(proxy, 7).await.iter().enumerate() {
        let way = if at == 3 { Way::Write } else { Way::Read };
        waiters.push(way.queue_up(locks, client).await);
    }
    settled().await;
    proxy.reset_counters();
    give_back(guard).await;
    let mut readers = Vec::new();
    for waiter in waiters.drain(..3) {
        readers.push(come(waiter).await);
    }
    still_wait(&waiters.iter().collect::<Vec<_>>()).await;
    assert!(proxy.pushes() <= 4, "three got the lock, and one looked ahead: {}", proxy.pushes());

    // The writer behind them is notified of its predecessor, and no reader of anything.
    proxy.reset_counters();
    give_back(readers.remove(0)).await;
    still_wait(&[&waiters[0]]).await;
    let own = 1;
    assert!(proxy.pushes() <= own + 1, "{}", proxy.pushes());
    for reader in readers {
        give_back(reader).await;
    }
    let writer = come(waiters.remove(0)).await;
    still_wait(&waiters.iter().collect::<Vec<_>>()).await;
    give_back(writer).await;
    for waiter in waiters {
        give_back(come(waiter).await).await;
    }
}

/// As Curator does it: a reader with the number of the writer, which goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer() {
    let scene = Scene::new().await;
    let (client, last) = (&scene.client, scene.connect().await);
    mkdir(client, "/locks/a").await;
    let written = foreign(client, "_c_1-__WRIT__").await;
    let first = Way::Read.queue_up(&scene.locks, client).await;
    let writer = Way::Write.queue_up(&scene.other, client).await;
    let last = Way::Read.queue_up(&last, client).await;
    still_wait(&[&first, &writer, &last]).await;
    let read = written.replace("_c_1-__WRIT__", "_c_2-__READ__");
    fixed(client, read.trim_start_matches("/locks/a/")).await;
    client.delete(&written, None).await.unwrap();
    let first = come(first).await;
    still_wait(&[&writer, &last]).await;
    give_back(first).await;
    // The one that was a writer still reads.
    still_wait(&[&writer]).await;
    client.delete(&read, None).await.unwrap();
    let writer = come(writer).await;
    still_wait(&[&last]).await;
    give_back(writer).await;
    give_back(come(last).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_writer_becomes_a_reader_under_its_own_number() {
    for (layout, reader) in
        [(ZkLayout::Curator, "-__READ__"), (ZkLayout::Plain, "read-"), (ZkLayout::Kazoo, "__rlock__")]
    {
        let scene = Scene::with(TIMEOUT, layout).await;
        let mut guard = Way::Write.take(&scene.locks).await;
        let written = node(&scene.client, 0).await;
        // The only one before it is the writer, whose end would be the grant if it were that of a mutex.
        let writer = Way::Write.queue_up(&scene.other, &scene.client).await;
        settled().await;
        guard.downgrade().await.unwrap();
        let read = node(&scene.client, 0).await;
        let (name, number) = read.split_at(read.len() - 10);
        assert!(name.ends_with(reader) && written.ends_with(number), "{layout:?}: {written} became {read}");
        still_wait(&[&writer]).await;
        let state = scene.other.inspect("a").await.unwrap();
        assert_eq!((state.token, state.waiters), (Some(guard.token()), 1), "{layout:?}");
        assert!(matches!(state.holder(), Some(Holder::Known(_))), "{layout:?}: {state:?}");
        give_back(hand_over(guard, writer).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_of_a_writer_that_became_a_reader_is_watched() {
    let scene = Scene::new().await;
    let (locks, client) = (&scene.locks, &scene.client);
    for was_watched in [false, true] {
        let mut guard = Way::Write.take(locks).await;
        if was_watched {
            until_lock_watches(&scene.server, 1).await;
        }
        guard.downgrade().await.unwrap();
        settled().await;
        assert!(guard.is_valid() && !guard.is_revoke_requested());
        assert!(locks.request_revocation("a").await.unwrap());
        soon(guard.revoke_requested()).await;
        delete_node(client, 0).await;
        soon(guard.lost()).await;
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
    // An earlier revocation request stays.
    let mut guard = Way::Write.take(locks).await;
    assert!(locks.request_revocation("a").await.unwrap());
    guard.downgrade().await.unwrap();
    soon(guard.revoke_requested()).await;
    let data = client.get_data(&node(client, 0).await).await.unwrap().0;
    assert!(String::from_utf8_lossy(&data).contains(r#""revoke":true"#), "{data:?}");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_permit_wakes_few_of_many_waiters() {
    let scene = Scene::new().await;
    let (client, proxy, way) = (&scene.client, &scene.proxy, Way::Permit(3));
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    let holders = [scene.connect().await, scene.connect().await, scene.connect().await];
    for holder in &holders {
        held.push(way.take(holder).await);
    }
    for locks in clients(proxy, 8).await {
        waiters.push(way.queue_up(&locks, client).await);
    }
    settled().await;
    // In the order in which they were granted: the one that gets it, and the one that looks ahead. In any other: the waiters for
    // which it was one of the three nearest.
    for (released, most) in [(0, 2), (1, 4)] {
        proxy.reset_counters();
        give_back(held.remove(released)).await;
        held.push(come(waiters.remove(0)).await);
        still_wait(&waiters.iter().collect::<Vec<_>>()).await;
        assert!(proxy.pushes() <= most, "{}", proxy.pushes());
    }
    // All at once.
    for guard in held {
        give_back(guard).await;
    }
    for _ in 0..3 {
        drop(come(waiters.remove(0)).await);
    }
    for waiter in waiters {
        give_back(come(waiter).await).await;
    }
    // The watches of the remaining nodes are removed.
    until_lock_watches(&scene.server, 0).await;
}

/// Their paths are more than what one session watches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: five hundred permits"]
async fn a_waiter_for_one_of_many_permits_reads_little() {
    let scene = Scene::new().await;
    let (locks, proxy, name) = (&scene.locks, &scene.proxy, format!("{:-<250}", "many"));
    let semaphore = scene.other.semaphore(&name, 500);
    let taken = iter((0..500).map(|_| semaphore.acquire()));
    let mut held: Vec<_> = taken.buffered(100).map(Result::unwrap).collect().await;
    for _ in 0..2 {
        let lock = locks.semaphore(&name, 500);
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        // The first listing takes long on a busy machine.
        let rests = async {
            loop {
                proxy.reset_counters();
                sleep(TIMEOUT).await; // Time: the requests of one session timeout are counted.
                if proxy.requests() < 40 {
                    break;
                }
            }
        };
        timeout(LASTING, rests).await.expect("forty requests and more in each session timeout");
        // There is room for the base of the tokens: a further lock is taken in as few requests as ever.
        give_back(take(locks, "other").await).await;
        // The last one is not watched.
        give_back(held.pop().unwrap()).await;
        held.push(come(waiter).await);
    }
    iter(held).for_each_concurrent(100, give_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_queue_costs_few_requests_and_wakes_one_waiter_at_a_time() {
    const WAITERS: usize = 50;
    let scene = Scene::new().await;
    let (proxy, guard) = (&scene.proxy, take(&scene.other, "a").await);
    let locks = clients(proxy, WAITERS).await;
    proxy.reset_counters();
    let (order, mut waiters) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for (at, locks) in locks.iter().enumerate() {
        let (mutex, order) = (locks.mutex("a"), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            order.lock().unwrap().push(at);
            give_back(guard).await;
        }));
        until_children(&scene.client, "a", at + 2).await;
    }
    settled().await;
    give_back(guard).await;
    for waiter in waiters {
        come(waiter).await;
    }
    assert!(order.lock().unwrap().is_sorted(), "not in the order of the queue");
    // Each of the first looks ahead: seven requests, and two others and itself are notified of its end. Of the others
    // five, and one. The listing that looks ahead may come too late, and be made again.
    let (first, others) = (33, WAITERS as u64 - 33);
    let (requests, pushes) = (proxy.requests(), proxy.pushes());
    assert!(requests <= first * 8 + others * 5 + 5, "{requests} requests");
    assert!(pushes <= first * 3 + others, "{pushes} notifications");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_wait_in_one_directory() {
    let waiters = lock_testkit::by_tier(2_000, 10_000, 10_000);
    let server = server().await;
    let observer = client(&server).await;
    // As many creations may keep a busy machine from its heartbeats for seconds.
    let connect = async || opened(&config(&server).session_timeout(LASTING)).await;
    let (one, two) = (connect().await, connect().await);
    let guard = take(&one, "a").await;
    // What they would have made, in ten sessions.
    let mut sessions = Vec::new();
    for _ in 0..10 {
        let session = client(&server).await;
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = "/locks/a/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-";
        let creations: Vec<_> = (0..waiters / 10).map(|_| session.create(prefix, b"", &options)).collect();
        for creation in creations {
            creation.await.unwrap();
        }
        sessions.push(session);
    }
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(one.inspect("a").await.unwrap().waiters, waiters);
    let waiter = acquiring(two.mutex("a"));
    until_children(&observer, "a", waiters + 2).await;
    give_back(guard).await;
    assert!(!waiter.is_finished());
    // Their sessions end, each with a tenth of the nodes.
    drop(sessions);
    give_back(come(waiter).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_in_the_directory_are_ignored_and_logged_once() {
    let (log, _listening) = LogCapture::begin();
    let scene = Scene::new().await;
    let locks = &scene.locks;
    for node in ["a/config", "a/lock-12", "b/config"] {
        mkdir(&scene.client, &format!("/locks/{node}")).await;
    }
    for _ in 0..3 {
        let guard = locks.mutex("a").try_acquire().await.unwrap().expect("nobody waits");
        assert_eq!(locks.inspect("a").await.unwrap().waiters, 0);
        give_back(guard).await;
        assert!(!locks.inspect("a").await.unwrap().is_held());
    }
    let warnings = log.warnings("");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("/locks/a") && warnings[0].contains("others=1"), "{warnings:?}");
    assert!(warnings[0].contains("config") || warnings[0].contains("lock-12"), "{warnings:?}");
    locks.inspect("b").await.unwrap();
    assert_eq!(log.warnings("").len(), 2);
}
