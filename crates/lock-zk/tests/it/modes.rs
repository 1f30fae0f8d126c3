//! Readers, permits, and revocation requests, on a server without faults.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use futures_util::stream::{StreamExt, iter};
use lock_core::{
    ErrorKind, Guard, GuardState, Holder, LockMode, LockOptions, LockState, Locks, LossReason, Released,
};
use lock_testkit::proxy::{Then, opcode, zk_opcode};
use lock_testkit::{FaultProxy, LogCapture};
use lock_zk::zookeeper_client::{Acls, CreateMode};
use lock_zk::{ZkConfig, ZkLayout};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A client of its own for each, whose requests go through the proxy.
async fn clients(proxy: &FaultProxy, count: usize) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..count {
        // Heartbeats are few.
        let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(Duration::from_secs(40));
        clients.push(config.connect().await.unwrap());
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_named_as_other_libraries_name_them() {
    let server = server().await;
    let client = client(&server).await;
    for (layout, names) in [
        (ZkLayout::Curator, ["-lock-", "-__WRIT__", "-__READ__", "-permit-3-"]),
        (ZkLayout::Plain, ["lock-", "write-", "read-", "permit-3-"]),
        (ZkLayout::Kazoo, ["__lock__", "__write__lock__", "__rlock__", "__permit-3-"]),
    ] {
        let locks = config(&server).layout(layout).connect().await.unwrap();
        for (at, name) in names.into_iter().enumerate() {
            let guard = match at {
                0 => locks.mutex("a").acquire().await,
                1 => locks.rw("a").write().await,
                2 => locks.rw("a").read().await,
                _ => locks.semaphore("a", 3).acquire().await,
            };
            let node = children(&client, "a").await.remove(0);
            assert!(node[..node.len() - 10].ends_with(name), "{layout:?}: {node}");
            give_back(guard.unwrap()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_wakes_its_readers_only() {
    let server = server().await;
    let (holder, client, proxy) = (connect(&server).await, client(&server).await, proxy(&server));
    let guard = holder.rw("a").write().await.unwrap();
    let locks = clients(&proxy, 7).await;
    let mut waiters: Vec<JoinHandle<lock_core::Result<Guard>>> = Vec::new();
    // Three readers, a writer, and three readers.
    for (at, locks) in locks.iter().enumerate() {
        let lock = locks.rw("a");
        let acquire = async move { if at == 3 { lock.write().await } else { lock.read().await } };
        waiters.push(tokio::spawn(acquire));
        until_children(&client, "a", at + 2).await;
    }
    sleep(SETTLED).await;
    proxy.reset_counters();
    give_back(guard).await;
    let mut readers = Vec::new();
    for waiter in waiters.drain(..3) {
        readers.push(soon(waiter).await);
    }
    sleep(SETTLED).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "the writer has to wait for the readers");
    assert!(proxy.pushes() <= 4, "three got the lock, and one looked ahead: {}", proxy.pushes());
    assert!(readers.iter().all(Guard::is_valid));

    // The writer behind them is notified of its predecessor, and no reader of anything.
    proxy.reset_counters();
    give_back(readers.remove(0)).await;
    sleep(SETTLED).await;
    assert!(!waiters[0].is_finished());
    let own = 1;
    assert!(proxy.pushes() <= own + 1, "{}", proxy.pushes());
    for reader in readers {
        give_back(reader).await;
    }
    let writer = soon(waiters.remove(0)).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nobody reads while somebody writes");
    give_back(writer).await;
    for waiter in waiters {
        give_back(soon(waiter).await).await;
    }
    until_children(&client, "a", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_of_other_libraries_share_and_exclude() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    for reader in ["_c_1-__READ__", "7c9e__rlock__", "read-"] {
        let node = foreign(&client, reader).await;
        assert!(locks.rw("a").try_write().await.unwrap().is_none(), "{reader}");
        assert!(locks.semaphore("a", 5).try_acquire().await.unwrap().is_none(), "{reader}");
        give_back(locks.rw("a").try_read().await.unwrap().expect(reader)).await;
        client.delete(&node, None).await.unwrap();
    }
    for other in
        ["_c_1-__WRIT__", "7c9e__lock__", "write-", "_c_1-lock-", "_c_1-lease-", "semaphore-", "thread-"]
    {
        let node = foreign(&client, other).await;
        assert!(locks.rw("a").try_read().await.unwrap().is_none(), "{other}");
        assert!(locks.semaphore("a", 5).try_acquire().await.unwrap().is_none(), "{other}");
        client.delete(&node, None).await.unwrap();
    }
    give_back(locks.rw("a").try_write().await.unwrap().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer() {
    let server = server().await;
    let client = client(&server).await;
    mkdir(&client, "/locks/a").await;
    let (writing, reading) = (connect(&server).await, connect(&server).await);
    let written = foreign(&client, "_c_1-__WRIT__").await;
    // A reader before the writer, and one behind it.
    let first = reading.rw("a");
    let first = tokio::spawn(async move { first.read().await });
    until_children(&client, "a", 2).await;
    let writer = writing.rw("a");
    let writer = tokio::spawn(async move { writer.write().await });
    until_children(&client, "a", 3).await;
    let last = connect(&server).await.rw("a");
    let last = tokio::spawn(async move { last.read().await });
    until_children(&client, "a", 4).await;
    sleep(SETTLED).await;
    // As Curator does it: a reader with the number of the writer, which goes.
    let read = written.replace("_c_1-__WRIT__", "_c_2-__READ__");
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create(&read, b"", &options).await.unwrap();
    client.delete(&written, None).await.unwrap();
    let first = soon(first).await;
    sleep(SETTLED).await;
    assert!(!writer.is_finished() && !last.is_finished() && first.is_valid());
    give_back(first).await;
    sleep(SETTLED).await;
    assert!(!writer.is_finished(), "the one that was a writer still reads");
    client.delete(&read, None).await.unwrap();
    let writer = soon(writer).await;
    sleep(SETTLED).await;
    assert!(!last.is_finished());
    give_back(writer).await;
    give_back(soon(last).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_writer_becomes_a_reader_under_its_own_number() {
    let server = server().await;
    let client = client(&server).await;
    for (layout, reader) in
        [(ZkLayout::Curator, "-__READ__"), (ZkLayout::Plain, "read-"), (ZkLayout::Kazoo, "__rlock__")]
    {
        let connect = async || config(&server).layout(layout).connect().await.unwrap();
        let (holder, second, third) = (connect().await, connect().await, connect().await);
        let mut guard = holder.rw("a").write().await.unwrap();
        let written = children(&client, "a").await.remove(0);
        // The only one before it is the writer, whose end would be the grant if it were that of a mutex.
        let (lock, mutex) = (second.rw("a"), third.mutex("a"));
        let writer = tokio::spawn(async move { lock.write().await });
        until_children(&client, "a", 2).await;
        let alone = tokio::spawn(async move { mutex.acquire().await });
        until_children(&client, "a", 3).await;
        sleep(SETTLED).await;
        guard.downgrade().await.unwrap();
        let mut nodes = children(&client, "a").await;
        nodes.sort_unstable_by_key(|node| node[node.len() - 10..].to_owned());
        assert_eq!(nodes.len(), 3, "{layout:?}: {nodes:?}");
        assert!(nodes[0][..nodes[0].len() - 10].ends_with(reader), "{layout:?}: {nodes:?}");
        assert_eq!(nodes[0][nodes[0].len() - 10..], written[written.len() - 10..], "{layout:?}");
        sleep(SETTLED).await;
        assert!(!writer.is_finished() && !alone.is_finished(), "{layout:?}: somebody reads");
        let state = holder.inspect("a").await.unwrap();
        assert_eq!((state.token, state.waiters), (Some(guard.token()), 2), "{layout:?}");
        assert!(matches!(state.holder(), Some(Holder::Known(_))), "{layout:?}: {state:?}");
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        let token = guard.token();
        give_back(guard).await;
        let writer = soon(writer).await;
        assert!(writer.token() > token);
        give_back(writer).await;
        give_back(soon(alone).await).await;
        until_children(&client, "a", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_of_a_writer_that_became_a_reader_is_watched() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    // At once, and when the node of the writer is watched already.
    for before in [Duration::ZERO, SETTLED] {
        let mut guard = locks.rw("a").write().await.unwrap();
        sleep(before).await;
        guard.downgrade().await.unwrap();
        sleep(SETTLED).await;
        assert!(guard.is_valid() && !guard.is_revoke_requested());
        assert!(locks.request_revocation("a").await.unwrap());
        timeout(SOON, guard.revoke_requested()).await.expect("it is notified");
        let node = children(&client, "a").await.remove(0);
        client.delete(&format!("/locks/a/{node}"), None).await.unwrap();
        timeout(SOON, guard.lost()).await.expect("it is notified");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
    // An earlier revocation request stays.
    let mut guard = locks.rw("a").write().await.unwrap();
    assert!(locks.request_revocation("a").await.unwrap());
    guard.downgrade().await.unwrap();
    timeout(SOON, guard.revoke_requested()).await.expect("it is notified");
    let node = children(&client, "a").await.remove(0);
    let data = String::from_utf8(client.get_data(&format!("/locks/a/{node}")).await.unwrap().0).unwrap();
    assert!(data.contains(r#""revoke":true"#), "{data}");
    give_back(guard).await;
    // And so does the limit.
    let limited = LockOptions::new().max_hold(Duration::from_secs(1));
    let mut guard = locks.rw_with("a", limited).unwrap().write().await.unwrap();
    guard.downgrade().await.unwrap();
    assert_eq!(timeout(SOON, guard.lost()).await.expect("it ends"), LossReason::MaxHold);
    until_children(&client, "a", 0).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_the_first_waiters_are_shown_in_the_order_of_their_nodes() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    let mut nodes = Vec::new();
    for number in 0..140 {
        nodes.push(foreign(&client, if number < 70 { "read-" } else { "permit-3-" }).await);
    }
    let state = locks.inspect("a").await.unwrap();
    let shown = |text: String| text.trim_start_matches("node ").to_owned();
    let holders: Vec<_> = state.holders.iter().map(|holder| shown(holder.holder.to_string())).collect();
    let queue: Vec<_> = state.queue.iter().map(|waiter| shown(waiter.waiter.to_string())).collect();
    let names: Vec<_> = nodes.iter().map(|path| path.trim_start_matches("/locks/a/").to_owned()).collect();
    assert_eq!((&holders[..], &queue[..]), (&names[..70], &names[70..]), "{state}");
    assert!(state.holders.iter().all(|holder| holder.mode == LockMode::Shared), "{state}");
    assert!(state.queue.iter().all(|waiter| waiter.mode.to_string() == "one of 3 permits"), "{state}");
    assert!(state.queue.iter().all(|waiter| waiter.since.is_some()), "{state}");
    for _ in 0..60 {
        foreign(&client, "lock-").await;
    }
    let state = locks.inspect("a").await.unwrap();
    assert_eq!((state.queue.len(), state.waiters), (LockState::MAX_QUEUE, 130), "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_locks_are_listed_and_nothing_else() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    assert_eq!(locks.list("").await.unwrap(), [], "there is no directory yet");
    let guard = locks.mutex("a/b").acquire().await.unwrap();
    guard.raise_token(lock_core::Token::new(1 << 40)).await.unwrap();
    for other in ["/locks/not%2a", "/locks/x y"] {
        mkdir(&client, other).await;
    }
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/b"]);
    // By the token as it was, and as it is shown since.
    assert!(!locks.break_lock_if("a/b", guard.token()).await.unwrap());
    let shown = locks.inspect("a/b").await.unwrap().holders[0].token.unwrap();
    assert!(shown > guard.token() && locks.break_lock_if("a/b", shown).await.unwrap());
    timeout(SOON, guard.lost()).await.expect("it is notified");
    let root = config(&server).dir("/").connect().await.unwrap();
    let guard = root.mutex("zookeeper").acquire().await.unwrap();
    let names = root.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["locks", "zookeeper"]);
    give_back(guard).await;
}

/// A revocation request overwrites the data of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_the_right_token_of_a_downgraded_reader_or_none() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    let only_node = async || format!("/locks/a/{}", children(&client, "a").await.remove(0));
    for wish_first in [false, true] {
        let mut guard = locks.rw("a").write().await.unwrap();
        let (written, token) = (locks.inspect("a").await.unwrap(), guard.token());
        assert!(written.holders[0].asked.is_some() && written.token == Some(token));
        sleep(SETTLED).await;
        if wish_first {
            client.set_data(&only_node().await, b"__REVOKE__", None).await.unwrap();
            let state = locks.inspect("a").await.unwrap();
            assert_eq!(
                (state.holders[0].asked, state.token),
                (written.holders[0].asked, Some(token)),
                "a writer has one node"
            );
        }
        guard.downgrade().await.unwrap();
        if !wish_first {
            let state = locks.inspect("a").await.unwrap();
            assert_eq!(
                (state.holders[0].asked, state.token),
                (written.holders[0].asked, written.token),
                "it is the same hold"
            );
            assert_eq!(
                (written.holders[0].mode, state.holders[0].mode),
                (LockMode::Exclusive, LockMode::Shared)
            );
            client.set_data(&only_node().await, b"__REVOKE__", None).await.unwrap();
        }
        let state = locks.inspect("a").await.unwrap();
        assert_eq!(
            (state.is_held(), state.holders[0].asked, state.token),
            (true, None, None),
            "{wish_first}"
        );
        assert_eq!((guard.token(), guard.verify().await.unwrap()), (token, GuardState::Valid));
        give_back(guard).await;
    }
    // A reader whose token is unknown cannot be distinguished from another one.
    let mut guard = locks.rw("a").write().await.unwrap();
    guard.downgrade().await.unwrap();
    assert!(locks.break_lock_if("a", guard.token()).await.unwrap(), "its node says what it was");
    timeout(SOON, guard.lost()).await.expect("it is notified");
    let mut guard = locks.rw("a").write().await.unwrap();
    guard.downgrade().await.unwrap();
    client.set_data(&only_node().await, b"__REVOKE__", None).await.unwrap();
    let error = locks.break_lock_if("a", guard.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    give_back(guard).await;
    // A reader from the start says so.
    let guard = locks.rw("a").read().await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(state.holders[0].asked.is_some() && state.token == Some(guard.token()), "{state:?}");
    give_back(guard).await;
}

/// Every request of a downgrade is lost once, with its answer or without; then it is called again, or the lock given
/// back as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_keeps_the_lock_whichever_request_is_lost() {
    for layout in [ZkLayout::Curator, ZkLayout::Plain] {
        let server = server().await;
        let (client, proxy) = (client(&server).await, proxy(&server));
        let other = config(&server).layout(layout).connect().await.unwrap();
        for code in [opcode::GET_DATA, opcode::MULTI] {
            for fault in 0..3 {
                for waits in [true, false] {
                    // A new session: one that loses its connection again and again is not valid for long.
                    let locks = through(&proxy).layout(layout).connect().await.unwrap();
                    let mut guard = locks.rw("a").write().await.unwrap();
                    // The watch of its node is there by then, and no other request under way.
                    sleep(SETTLED).await;
                    proxy.reset_counters();
                    let lost = move |request: &[u8]| zk_opcode(code)(request) && !is_check(request);
                    match fault {
                        0 => proxy.cut_when(lost),
                        1 => proxy.swallow_when(lost, Then::Reset),
                        _ => proxy.swallow_when(lost, Then::Hang),
                    }
                    let at = format!("{layout:?} {code} {fault} {waits}");
                    if waits {
                        guard.downgrade().await.expect(&at);
                        give_back(other.rw("a").try_read().await.unwrap().expect(&at)).await;
                    } else {
                        let cancelled = timeout(Duration::from_millis(1), guard.downgrade()).await;
                        until("the fault does not come to pass", async || proxy.fired() == 1).await;
                        assert!(cancelled.is_err(), "{at}: it cannot be answered by then");
                    }
                    assert_eq!(proxy.fired(), 1, "{at}");
                    assert!(other.rw("a").try_write().await.unwrap().is_none(), "{at}");
                    assert_eq!(children(&client, "a").await.len(), 1, "{at}");
                    assert!(guard.is_valid(), "{at}");
                    // Within a silence it goes on in the background.
                    match guard.release().await {
                        Ok(released) => assert_eq!(released, Released::Released, "{at}"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{at}"),
                    }
                    until_children(&client, "a", 0).await;
                }
            }
        }
        drop(other);
        until("a watch is left", async || lock_watches(&server).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_permit_wakes_few_of_many_waiters() {
    let server = server().await;
    let (client, proxy) = (client(&server).await, proxy(&server));
    let holders = [connect(&server).await, connect(&server).await, connect(&server).await];
    let mut held = Vec::new();
    for holder in &holders {
        held.push(holder.semaphore("a", 3).acquire().await.unwrap());
    }
    let locks = clients(&proxy, 8).await;
    let mut waiters = Vec::new();
    for (at, locks) in locks.iter().enumerate() {
        let semaphore = locks.semaphore("a", 3);
        waiters.push(tokio::spawn(async move { semaphore.acquire().await }));
        until_children(&client, "a", at + 4).await;
    }
    sleep(SETTLED).await;
    // In the order in which they were granted: the one that gets it, and the one that looks ahead.
    proxy.reset_counters();
    give_back(held.remove(0)).await;
    held.push(soon(waiters.remove(0)).await);
    sleep(SETTLED).await;
    assert!(proxy.pushes() <= 2, "{}", proxy.pushes());
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one permit came back, and two took it");
    // In any other: the waiters for which it was one of the three nearest.
    proxy.reset_counters();
    give_back(held.remove(1)).await;
    held.push(soon(waiters.remove(0)).await);
    sleep(SETTLED).await;
    assert!(proxy.pushes() <= 4, "{}", proxy.pushes());
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "one permit came back, and two took it");
    // All at once.
    for guard in held {
        give_back(guard).await;
    }
    for _ in 0..3 {
        drop(soon(waiters.remove(0)).await);
    }
    for waiter in waiters {
        give_back(soon(waiter).await).await;
    }
    until_children(&client, "a", 0).await;
    // The watches of the remaining nodes are removed.
    until("a watch is left", async || lock_watches(&server).await == 0).await;
}

/// Their paths are more than what one session watches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: a thousand permits"]
async fn a_waiter_for_one_of_many_permits_reads_little() {
    let server = server().await;
    let (proxy, holder) = (proxy(&server), connect(&server).await);
    let name = format!("{:-<250}", "many");
    let semaphore = holder.semaphore(&name, 500);
    let taken = iter((0..500).map(|_| semaphore.acquire()));
    let mut held: Vec<_> = taken.buffered(100).map(Result::unwrap).collect().await;
    let locks = opened(&through(&proxy)).await;
    for _ in 0..2 {
        let lock = locks.semaphore(&name, 500);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        // The first listing takes long on a busy machine.
        let rests = async {
            loop {
                proxy.reset_counters();
                sleep(TIMEOUT).await;
                if proxy.requests() < 40 {
                    break;
                }
            }
        };
        timeout(Duration::from_secs(60), rests)
            .await
            .expect("forty requests and more in each session timeout");
        // There is room for the base of the tokens: a further lock is taken in as few requests as ever.
        give_back(locks.mutex("other").acquire().await.unwrap()).await;
        // The last one is not watched.
        give_back(held.pop().unwrap()).await;
        held.push(soon(waiter).await);
    }
    iter(held).for_each_concurrent(100, give_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_asked_to_give_the_lock_up() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    assert!(!one.request_revocation("a").await.unwrap(), "nobody holds it");
    let (reader, other) = (one.rw("a").read().await.unwrap(), two.rw("a").read().await.unwrap());
    let writer = connect(&server).await.rw("a");
    let writer = tokio::spawn(async move { writer.write().await });
    until_children(&client, "a", 3).await;
    sleep(SETTLED).await;
    // Another change of the data is no revocation request.
    let nodes = children(&client, "a").await;
    client.set_data(&format!("/locks/a/{}", nodes[0]), b"REVOKE", None).await.unwrap();
    sleep(SETTLED).await;
    assert!(!reader.is_revoke_requested() && reader.is_valid());
    assert!(two.request_revocation("a").await.unwrap());
    timeout(SOON, reader.revoke_requested()).await.unwrap();
    timeout(SOON, other.revoke_requested()).await.unwrap();
    assert!(reader.is_valid() && other.is_valid(), "it is only a wish");
    give_back(reader).await;
    give_back(other).await;
    let writer = soon(writer).await;
    sleep(SETTLED).await;
    assert!(!writer.is_revoke_requested(), "it was asked of others");

    // As Curator's `Revoker` asks.
    let node = format!("/locks/a/{}", children(&client, "a").await[0]);
    client.set_data(&node, b"__REVOKE__", None).await.unwrap();
    timeout(SOON, writer.revoke_requested()).await.unwrap();
    give_back(writer).await;
    // Before the holder watches its node.
    let early = one.mutex("a").acquire().await.unwrap();
    assert!(two.request_revocation("a").await.unwrap());
    timeout(SOON, early.revoke_requested()).await.unwrap();
    give_back(early).await;
    // As Curator's holders expect.
    let theirs = foreign(&client, "lock-").await;
    assert!(two.request_revocation("a").await.unwrap());
    assert_eq!(client.get_data(&theirs).await.unwrap().0, b"__REVOKE__");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_asked_knows_it_when_it_holds_the_lock() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    let waiter = queue_up(&two, &client, 2).await;
    sleep(SETTLED).await;
    let node = format!("/locks/a/{}", children(&client, "a").await[1]);
    client.set_data(&node, b"__REVOKE__", None).await.unwrap();
    sleep(SETTLED).await;
    give_back(guard).await;
    let guard = soon(waiter).await;
    timeout(SOON, guard.revoke_requested()).await.unwrap();
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_queue_costs_few_requests_and_wakes_one_waiter_at_a_time() {
    const WAITERS: usize = 50;
    let server = server().await;
    let (client, proxy) = (client(&server).await, proxy(&server));
    let guard = connect(&server).await.mutex("a").acquire().await.unwrap();
    let locks = clients(&proxy, WAITERS).await;
    proxy.reset_counters();
    let (sender, mut order) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for (at, locks) in locks.iter().enumerate() {
        let (mutex, sender) = (locks.mutex("a"), sender.clone());
        waiters.push(tokio::spawn(async move {
            let guard = mutex.acquire().await?;
            sender.send(at).unwrap();
            guard.release().await
        }));
        until_children(&client, "a", at + 2).await;
    }
    sleep(SETTLED).await;
    give_back(guard).await;
    for at in 0..WAITERS {
        assert_eq!(timeout(SOON, order.recv()).await.unwrap(), Some(at));
    }
    for waiter in waiters {
        assert_eq!(soon(waiter).await, Released::Released);
    }
    // Each of the first looks ahead: seven requests, and two others and itself are notified of its end. Of the others
    // five, and one. The listing that looks ahead may come too late, and be made again.
    let (first, others) = (33, WAITERS as u64 - 33);
    let (requests, pushes) = (proxy.requests(), proxy.pushes());
    assert!(requests <= first * 8 + others * 5 + 5, "{requests} requests");
    assert!(pushes <= first * 3 + others, "{pushes} notifications");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_wait_in_one_directory() {
    const WAITERS: usize = 10_000;
    let server = server().await;
    let client = Arc::new(client(&server).await);
    // Ten thousand creations may keep a busy machine from its heartbeats for seconds.
    let config = ZkConfig::new(server.connect_string()).session_timeout(Duration::from_secs(40));
    let one = config.private_session(true).connect().await.unwrap();
    let guard = one.mutex("a").acquire().await.unwrap();
    // What they would have made, in ten sessions.
    let mut sessions = Vec::new();
    for _ in 0..10 {
        let session = crate::common::client(&server).await;
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = "/locks/a/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-";
        let creations: Vec<_> = (0..WAITERS / 10).map(|_| session.create(prefix, b"", &options)).collect();
        for creation in creations {
            creation.await.unwrap();
        }
        sessions.push(session);
    }
    let mutex = connect(&server).await.mutex("a");
    assert!(mutex.try_acquire().await.unwrap().is_none());
    assert!(mutex.try_acquire_for(Duration::from_millis(300)).await.unwrap().is_none());
    assert!(guard.is_valid());
    // The wait that ran out deletes its node in the background.
    until_children(&client, "a", WAITERS + 1).await;
    assert_eq!(one.inspect("a").await.unwrap().waiters, WAITERS);
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    until_children(&client, "a", WAITERS + 2).await;
    assert!(guard.is_valid());
    give_back(guard).await;
    assert!(!waiter.is_finished());
    // Their sessions end, each with a thousand nodes.
    drop(sessions);
    let guard = timeout(3 * SOON, waiter).await.expect("its turn comes").unwrap().unwrap();
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_in_the_directory_are_ignored_and_logged_once() {
    let (log, _listening) = LogCapture::begin();
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    for node in ["a/config", "a/lock-12", "b/config"] {
        mkdir(&client, &format!("/locks/{node}")).await;
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

/// A way to take a lock.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    Read,
    Write,
    Permit,
}

impl Way {
    const ALL: [Self; 4] = [Self::Alone, Self::Read, Self::Write, Self::Permit];

    fn wait(self, locks: &Locks) -> JoinHandle<lock_core::Result<Guard>> {
        let locks = locks.clone();
        tokio::spawn(async move {
            match self {
                Self::Alone => locks.mutex("a").acquire().await,
                Self::Read => locks.rw("a").read().await,
                Self::Write => locks.rw("a").write().await,
                Self::Permit => locks.semaphore("a", 2).acquire().await,
            }
        })
    }
}

/// Every request of a waiter is lost once, with its answer or without, and the wait goes on in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_request_of_a_waiter_is_lost_it_gets_its_turn() {
    for way in Way::ALL {
        let server = server().await;
        let (other, client, proxy) = (connect(&server).await, client(&server).await, proxy(&server));
        let locks = through(&proxy).connect().await.unwrap();
        give_back(soon(way.wait(&locks)).await).await;
        for code in [opcode::CREATE2, opcode::GET_CHILDREN2, opcode::GET_DATA] {
            let asks = || {
                let (enters, asks) = (enters(), zk_opcode(code));
                move |request: &[u8]| if code == opcode::CREATE2 { enters(request) } else { asks(request) }
            };
            for fault in 0..4 {
                let guard = other.mutex("a").acquire().await.unwrap();
                proxy.reset_counters();
                match fault {
                    0 => proxy.cut_when(asks()),
                    1 => proxy.swallow_when(asks(), Then::Reset),
                    2 => proxy.swallow_when(asks(), Then::Fin),
                    _ => proxy.swallow_when(asks(), Then::Hang),
                }
                let waiter = way.wait(&locks);
                until("the fault does not come to pass", async || proxy.fired() == 1).await;
                until_children(&client, "a", 2).await;
                sleep(SETTLED).await;
                assert!(!waiter.is_finished(), "{way:?} {code} {fault}");
                give_back(guard).await;
                let guard = soon(waiter).await;
                assert_eq!(children(&client, "a").await.len(), 1, "{way:?} {code} {fault}");
                assert!(guard.is_valid());
                give_back(guard).await;
                until_children(&client, "a", 0).await;
            }
        }
        drop(locks);
        until("a watch is left", async || lock_watches(&server).await == 0).await;
    }
}
