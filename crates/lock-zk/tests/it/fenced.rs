//! Writes that take effect only while the lock is held.

use std::time::Duration;

use crate::common::{
    SETTLED, SHORT, SOON, black_hole, children, client, config, give_back, mkdir, proxy, through, until,
};
use futures_util::future::{join, join_all};
use futures_util::poll;
use lock_core::{ErrorKind, Guard, GuardState, LossReason, MemoryConfig, Outcome, Released, Token};
use lock_testkit::proxy::Direction;
use lock_zk::zookeeper_client::{Acls, CreateMode, Error};
use lock_zk::{Committed, FencedExt, ZkConfig, ZkLayout};
use tokio::time::{sleep, timeout};

fn is_applied(committed: &Committed) -> bool {
    matches!(committed, Committed::Applied(_))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_take_effect_all_or_not_at_all() {
    let server = crate::common::server().await;
    let (locks, other) = (config(&server).connect().await.unwrap(), client(&server).await);
    mkdir(&other, "/orders").await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let made = guard.fenced().unwrap().create("/orders/1", "new").create("/orders/2", "new").commit().await;
    let Committed::Applied(results) = made.unwrap() else { panic!("nothing is in the way") };
    assert_eq!(results.len(), 2, "one for each");
    let all = guard.fenced().unwrap();
    let all = all.check("/orders", None).set("/orders/1", "paid", Some(0)).delete("/orders/2", None);
    assert!(is_applied(&all.commit().await.unwrap()));
    assert_eq!(other.get_data("/orders/1").await.unwrap().0, b"paid");
    assert!(other.check_stat("/orders/2").await.unwrap().is_none());

    let none = guard.fenced().unwrap().create("/orders/3", "new").set("/orders/1", "again", Some(0));
    match none.commit().await.unwrap() {
        Committed::Refused { index, error } => assert_eq!((index, error), (1, Error::BadVersion)),
        committed => panic!("{committed:?}"),
    }
    assert!(other.check_stat("/orders/3").await.unwrap().is_none());
    assert!(is_applied(&guard.fenced().unwrap().commit().await.unwrap()), "nothing to write");
    assert!(guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_writer_that_became_a_reader_is_known_by_its_new_node() {
    let server = crate::common::server().await;
    let (locks, other) = (config(&server).connect().await.unwrap(), client(&server).await);
    mkdir(&other, "/order").await;
    let mut guard = locks.rw("a").write().await.unwrap();
    guard.downgrade().await.unwrap();
    assert!(is_applied(&guard.fenced().unwrap().set("/order", "read", None).commit().await.unwrap()));
    let floor = Token::new(guard.token().get() + 1_000_000);
    guard.raise_token(floor).await.unwrap();
    let reader = locks.rw("a").read().await.unwrap();
    assert!(reader.token() > floor && guard.token() < floor);
    assert_eq!(reader.release().await.unwrap(), Released::Released);
    let writes = guard.fenced().unwrap().set("/order", "late", None);
    let node = children(&other, "a").await.pop().unwrap();
    other.delete(&format!("/locks/a/{node}"), None).await.unwrap();
    assert_eq!(writes.commit().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.raise_token(floor).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(other.get_data("/order").await.unwrap().0, b"read");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_that_is_lost_writes_nothing() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let (locks, other) = (through(&proxy).connect().await.unwrap(), client(&server).await);
    mkdir(&other, "/order").await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    // The writes are on their way when another client gets the lock.
    proxy.hold(Direction::ToServer);
    let writing = async {
        let late = guard.fenced().unwrap().set("/order", "late", None).commit().await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    };
    let losing = async {
        while proxy.queued(Direction::ToServer) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let node = children(&other, "a").await.pop().unwrap();
        other.delete(&format!("/locks/a/{node}"), None).await.unwrap();
        proxy.deliver();
    };
    tokio::join!(writing, losing);
    assert_eq!(other.get_data("/order").await.unwrap().0, b"");
    assert_eq!(guard.state(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.fenced().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

/// The ensemble checks the node, which tasks that pass the lock on have in common.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_next_task_gets_the_lock_after_the_writes_that_were_given_up() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let (locks, other) = (through(&proxy).connect().await.unwrap(), client(&server).await);
    mkdir(&other, "/order").await;
    let (mutex, guard) = (locks.mutex("a"), locks.mutex("a").acquire().await.unwrap());
    // Answered, they are no reason to ask the ensemble.
    assert!(is_applied(&guard.fenced().unwrap().set("/order", "first", None).commit().await.unwrap()));
    let mut next = Box::pin(mutex.acquire());
    assert!(poll!(&mut next).is_pending(), "the lock is held");
    let owner = guard.owner();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    let guard = next.await.unwrap();
    assert_eq!(guard.owner(), owner, "passed on");

    proxy.hold(Direction::ToServer);
    // Longer than any heartbeat.
    let late = "late".repeat(1_000);
    let mut writing = Box::pin(guard.fenced().unwrap().set("/order", &*late, None).commit());
    while proxy.queued(Direction::ToServer) < late.len() {
        assert!(poll!(&mut writing).is_pending(), "its answer is held up");
        sleep(Duration::from_millis(1)).await;
    }
    drop(writing);
    let mut next = Box::pin(mutex.acquire());
    assert!(poll!(&mut next).is_pending(), "the lock is held");
    let mut release = Box::pin(guard.release());
    assert!(poll!(&mut release).is_pending() && poll!(&mut next).is_pending(), "the writes are on their way");
    proxy.deliver();
    let (released, next) = timeout(SOON, async { tokio::join!(release, next) }).await.unwrap();
    assert_eq!(released.unwrap(), Released::Released);
    assert_eq!(other.get_data("/order").await.unwrap().0, late.as_bytes());
    let next = next.unwrap();
    assert_ne!(next.owner(), owner, "passed on with writes on their way");
    assert_eq!(next.release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_ended_writes_nothing() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let (config, other) = (through(&proxy).session_timeout(SHORT), client(&server).await);
    let locks = crate::common::opened(&config).await;
    mkdir(&other, "/order").await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let writes = guard.fenced().unwrap().set("/order", "late", None);
    black_hole(&proxy, true);
    crate::common::until_children(&other, "a", 0).await;
    proxy.heal();
    assert_eq!(writes.commit().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(other.get_data("/order").await.unwrap().0, b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_cannot_be_fenced_is_reported() {
    let server = crate::common::server().await;
    let memory = MemoryConfig::new().connect().unwrap();
    let guard = memory.mutex("a").acquire().await.unwrap();
    assert_eq!(guard.fenced().unwrap_err().kind(), ErrorKind::Unsupported);
    let plain = config(&server).layout(ZkLayout::Plain).connect().await.unwrap();
    let guard = plain.mutex("a").acquire().await.unwrap();
    assert_eq!(guard.fenced().unwrap_err().kind(), ErrorKind::Unsupported);

    let (locks, other) = (config(&server).connect().await.unwrap(), client(&server).await);
    let read_only = CreateMode::Persistent.with_acls(Acls::anyone_read());
    other.create("/theirs", b"", &read_only).await.unwrap();
    let guard = locks.mutex("b").acquire().await.unwrap();
    let error = guard.fenced().unwrap().set("/theirs", "ours", None).commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("/theirs"), "{error}");
    let error = guard.fenced().unwrap().set("no/path", "", None).commit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}

/// A server ends the connection at a request that is too large, and with it heartbeats of all locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_no_server_reads_are_refused_and_cost_no_other_lock() {
    let server = crate::common::server().await;
    let (locks, other) = (config(&server).connect().await.unwrap(), client(&server).await);
    mkdir(&other, "/order").await;
    mkdir(&other, "/large").await;
    let mut held = Vec::new();
    for name in 0..10 {
        held.push(locks.mutex(format!("held/{name}")).acquire().await.unwrap());
    }
    let fits = vec![0; ZkConfig::JUTE_MAXBUFFER - 500];
    assert!(is_applied(&held[0].fenced().unwrap().set("/large", fits, None).commit().await.unwrap()));
    let large = vec![0; 1_500_000];
    let writing = (0..3).map(async |name| {
        let guard = locks.mutex(format!("writes/{name}")).acquire().await.unwrap();
        for _ in 0..60 {
            let error = guard.fenced().unwrap().set("/order", &*large, None).commit().await.unwrap_err();
            assert_eq!(
                (error.kind(), error.outcome()),
                (ErrorKind::Unsupported, Outcome::NotApplied),
                "{error}"
            );
            assert!(error.to_string().contains("jute.maxbuffer"), "{error}");
            sleep(SHORT * 3 / 60).await;
        }
        give_back(guard).await;
    });
    join_all(writing).await;
    assert!(held.iter().all(Guard::is_valid));
    assert_eq!(other.get_data("/order").await.unwrap().0, b"");
    for guard in held {
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_bytes_of_writes_are_under_way_in_the_session_of_the_locks() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let locks = through(&proxy).session_timeout(SOON * 3).connect().await.unwrap();
    let other = client(&server).await;
    let names = ["a", "b", "c"];
    let mut guards = Vec::new();
    for name in names {
        mkdir(&other, &format!("/{name}")).await;
        guards.push(locks.mutex(name).acquire().await.unwrap());
    }
    proxy.hold(Direction::ToServer);
    let large = vec![b'x'; 600_000];
    let write = async |at: usize| {
        let guard: &Guard = &guards[at];
        guard.fenced().unwrap().set(format!("/{}", names[at]), &*large, None).commit().await
    };
    let mut first = Box::pin(write(0));
    assert!(poll!(&mut first).is_pending());
    until("it is under way", async || proxy.queued(Direction::ToServer) > large.len()).await;
    // Given up, it is under way nevertheless.
    drop(first);
    let mut rest = Box::pin(join(write(1), write(2)));
    assert!(timeout(2 * SETTLED, &mut rest).await.is_err());
    assert!(proxy.queued(Direction::ToServer) < large.len() * 3 / 2, "two are under way");
    proxy.deliver();
    let (second, third) = rest.await;
    assert!(is_applied(&second.unwrap()) && is_applied(&third.unwrap()));
    for name in names {
        until("all are applied", async || {
            other.get_data(&format!("/{name}")).await.unwrap().0.len() == large.len()
        })
        .await;
    }
    for guard in guards {
        give_back(guard).await;
    }
}
