//! The blocking types on real servers: threads contend, guards are dropped and lost, and a runtime refuses them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex as Shared;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lock_testkit::{PATIENCE, RedisServer, ZooKeeper};
use polylock::blocking::{Guard, Locks, Multi, Mutex, Reentrant};
use polylock::{ErrorKind, GuardState, LockOptions, LossReason, Released};

use crate::common::{in_background, one_thread};

#[test]
fn every_kind_of_lock_on_every_store() {
    let start = async { tokio::try_join!(RedisServer::start(), ZooKeeper::start()).unwrap() };
    let (redis, zk) = one_thread().block_on(start);
    // Leases are renewed every two seconds. Each client has a session of its own.
    for url in [
        "memory://blocking?ttl=6s".into(),
        format!("{}?ttl=6s", redis.url()),
        format!("{}?session=private&session_timeout=6s", zk.url()),
    ] {
        // Two processes, as far as the store can tell.
        let (locks, other) = (Locks::connect(&url).unwrap(), Locks::connect(&url).unwrap());
        for story in [
            threads_lose_no_update,
            a_lock_is_renewed_while_its_thread_waits,
            a_dropped_guard_releases,
            a_wait_ends_at_its_deadline,
            a_lost_lock_is_noticed,
            a_body_that_panics_releases,
            readers_and_permits,
            several_and_nested,
            leaders_are_observed,
            closing_ends_a_wait,
        ] {
            story(&locks, &other);
        }
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        // Time: it asks again.
        thread::sleep(Duration::from_millis(5));
    }
}

fn must_get(mutex: &Mutex) -> Guard {
    mutex.try_acquire_for(PATIENCE).unwrap().expect("the lock was given up")
}

fn threads_lose_no_update(locks: &Locks, other: &Locks) {
    let (counter, tokens) = (AtomicU64::new(0), Shared::new(Vec::new()));
    thread::scope(|scope| {
        for client in [locks, other, locks, other, locks, other, locks, other] {
            scope.spawn(|| {
                for _ in 0..10 {
                    let guard = client.mutex("counter").acquire().unwrap();
                    let seen = counter.load(Ordering::Relaxed);
                    tokens.lock().unwrap().push(guard.token());
                    thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                    assert_eq!(guard.release().unwrap(), Released::Released);
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 80, "two held the lock");
    let tokens = tokens.into_inner().unwrap();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// No thread of the test drives a runtime.
fn a_lock_is_renewed_while_its_thread_waits(locks: &Locks, other: &Locks) {
    let guard = locks.mutex("renewed").acquire().unwrap();
    let begin = guard.valid_until();
    until("the lease is renewed", || guard.valid_until() > begin);
    assert_eq!((guard.state(), guard.verify().unwrap()), (GuardState::Valid, GuardState::Valid));
    assert!(other.mutex("renewed").try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

fn a_dropped_guard_releases(locks: &Locks, other: &Locks) {
    drop(locks.mutex("dropped").acquire().unwrap());
    drop(must_get(&other.mutex("dropped")));
    let guard = locks.mutex("dropped").acquire().unwrap();
    thread::spawn(move || drop(guard)).join().unwrap();
    drop(must_get(&other.mutex("dropped")));
}

fn a_wait_ends_at_its_deadline(locks: &Locks, other: &Locks) {
    let (guard, mutex) = (locks.mutex("held").acquire().unwrap(), other.mutex("held"));
    // Time: a deadline that passes.
    let soon = Duration::from_millis(100);
    assert!(mutex.try_acquire().unwrap().is_none());
    let begin = Instant::now();
    assert!(mutex.try_acquire_for(soon).unwrap().is_none());
    assert!(begin.elapsed() >= soon);
    assert!(mutex.try_acquire_until(Instant::now() + soon).unwrap().is_none());
    assert!(mutex.try_acquire_until(begin).unwrap().is_none());
    guard.release().unwrap();
    assert!(mutex.try_acquire_until(Instant::now() + PATIENCE).unwrap().is_some());
}

fn a_lost_lock_is_noticed(locks: &Locks, other: &Locks) {
    let guard = locks.mutex("lost").acquire().unwrap();
    // Time: it is not lost.
    assert_eq!(guard.lost_within(Duration::from_millis(50)).unwrap(), None);
    assert!(other.break_lock("lost").unwrap());
    assert_eq!(guard.lost_within(PATIENCE).unwrap(), Some(LossReason::Removed));
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    let late = guard.run(|| unreachable!("the lock is lost")).unwrap_err();
    assert_eq!((late.error().kind(), late.into_output()), (ErrorKind::Lost, None::<()>));
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
    let late = locks.mutex("lost").run(|view| {
        assert!(other.break_lock("lost").unwrap());
        until("the loss", || !view.validity().is_valid());
        "written too late"
    });
    let late = late.unwrap_err();
    assert_eq!((late.error().kind(), late.into_output()), (ErrorKind::Lost, Some("written too late")));
}

fn a_body_that_panics_releases(locks: &Locks, other: &Locks) {
    let panics = || locks.mutex("panic").run(|_| -> () { resume_unwind(Box::new("wanted by the test")) });
    let panic = catch_unwind(AssertUnwindSafe(panics)).map(drop).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"wanted by the test"));
    // Not by the wait for a background release: it is awaited.
    assert!(other.mutex("panic").try_acquire().unwrap().is_some());
}

fn readers_and_permits(locks: &Locks, other: &Locks) {
    let (config, elsewhere) = (locks.rw("config"), other.rw("config"));
    let (one, two) = (config.read().unwrap(), elsewhere.read().unwrap());
    assert!(elsewhere.try_write().unwrap().is_none());
    assert!(config.try_write_for(Duration::ZERO).unwrap().is_none());
    drop((one, two));
    let mut writer = config.try_write_for(PATIENCE).unwrap().expect("both readers have left");
    assert!(elsewhere.try_read().unwrap().is_none());
    writer.downgrade().unwrap();
    assert!(elsewhere.try_read_for(PATIENCE).unwrap().is_some());

    let (room, next) = (locks.semaphore("room", 2), other.semaphore("room", 2));
    let (one, two) = (room.acquire().unwrap(), next.acquire().unwrap());
    assert!(room.try_acquire().unwrap().is_none() && two.token() > one.token());
    one.release().unwrap();
    assert!(next.try_acquire_for(PATIENCE).unwrap().is_some());
}

fn several_and_nested(locks: &Locks, other: &Locks) {
    let both = |locks: &Locks| Multi::new([locks.mutex("b"), locks.mutex("a")]).unwrap();
    let held = both(locks).acquire().unwrap();
    assert_eq!(held.guards().iter().map(|guard| guard.name().as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(both(other).try_acquire().unwrap().is_none());
    assert_eq!(held.run(|| 7).unwrap(), 7);
    assert!(other.break_lock("b").unwrap());
    assert_eq!(held.lost_within(PATIENCE).unwrap(), Some(LossReason::Removed));
    let lost = held.run(|| ()).unwrap_err();
    assert_eq!(lost.error().lock().map(polylock::LockName::as_str), Some("b"));
    drop(held);
    drop(both(other).try_acquire_for(PATIENCE).unwrap().expect("both are free"));

    let owner = Reentrant::new(&locks.mutex("nested"));
    let (outer, inner) = (owner.acquire().unwrap(), owner.acquire().unwrap());
    assert_eq!((outer.depth(), inner.token()), (2, outer.token()));
    assert_eq!(outer.release().unwrap(), None);
    assert!(Reentrant::new(&locks.mutex("nested")).try_acquire().unwrap().is_none());
    assert_eq!(inner.release().unwrap(), Some(Released::Released));
}

fn leaders_are_observed(locks: &Locks, other: &Locks) {
    let mut leaders = other.election("leader").observe();
    let mut label = || leaders.next().unwrap().unwrap().and_then(|leader| leader.label().map(str::to_owned));
    assert_eq!(label(), None);
    let leadership = locks.election("leader").campaign("one").unwrap();
    assert_eq!(label().as_deref(), Some("one"));
    assert_eq!(leadership.resign().unwrap(), Released::Released);
    let token = locks.election("leader").run("two", |view| view.token()).unwrap();
    assert!(must_get(&other.mutex("leader")).token() > token);
}

fn closing_ends_a_wait(locks: &Locks, other: &Locks) {
    let (guard, mutex) = (locks.mutex("closed").acquire().unwrap(), other.mutex("closed"));
    let waiter = thread::spawn(move || mutex.acquire().map(drop));
    until("the waiter is in the queue", || locks.inspect("closed").unwrap().waiters > 0);
    other.close().unwrap();
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    // The release of a dropped guard is awaited.
    drop(guard);
    locks.close().unwrap();
    assert_eq!(locks.mutex("closed").acquire().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn inside_of_a_runtime_every_call_is_refused_and_nothing_panics() {
    let locks = Locks::connect("memory://").unwrap();
    let guard = locks.mutex("a").acquire().unwrap();
    in_background().block_on(async {
        for error in [
            Locks::connect("memory://").map(drop).unwrap_err(),
            locks.mutex("b").acquire().map(drop).unwrap_err(),
            locks.mutex("b").run(|_| ()).map(drop).unwrap_err().into(),
            locks.rw("b").read().map(drop).unwrap_err(),
            locks.semaphore("b", 1).try_acquire().map(drop).unwrap_err(),
            locks.election("b").campaign("one").map(drop).unwrap_err(),
            locks.election("b").observe().next().unwrap().map(drop).unwrap_err(),
            locks.inspect("b").map(drop).unwrap_err(),
            locks.close().unwrap_err(),
            guard.verify().map(drop).unwrap_err(),
            guard.lost_within(PATIENCE).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("spawn_blocking"), "{error}");
        }
        // What does not block is no matter.
        assert!(guard.is_valid() && guard.run(|| 7).unwrap() == 7);
        let elsewhere = locks.clone();
        let acquired = tokio::task::spawn_blocking(move || elsewhere.mutex("b").acquire().map(drop));
        acquired.await.unwrap().unwrap();
        // A refused release gives the lock up all the same.
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Unsupported);
    });
    drop(must_get(&locks.mutex("a")));
}

#[test]
fn a_server_that_is_away_is_an_error_and_comes_back() {
    let runtime = one_thread();
    let redis = runtime.block_on(RedisServer::start()).unwrap();
    redis.kill();
    let locks = Locks::connect_lazy(&redis.url()).unwrap();
    let error = locks.mutex("a").acquire().unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, Some("acquire")));
    assert!(Locks::connect(&redis.url()).unwrap_err().is_retryable());
    runtime.block_on(redis.start_again()).unwrap();
    // Time: the lease ends.
    let fixed = LockOptions::new().fixed_ttl(Duration::from_secs(1));
    let guard = locks.mutex_with("a", fixed).unwrap().acquire().unwrap();
    assert_eq!(guard.lost_within(PATIENCE).unwrap(), Some(LossReason::DeadlinePassed));
    locks.close().unwrap();
}
