//! Locks on every rung, on real servers: who excludes whom, and with which tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LockOptions, Locks, LossReason, Token};
use lock_migrate::{MigrationConfig, Rung};
use lock_testkit::proxy::redis_command;
use lock_testkit::{acquiring, come, give_back, hand_over, queue_up, soon, take, until};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::common::{LEASE, Servers, at_last, is_busy, pass, redis};
use crate::faults::Side;

/// The rungs of which every mixture excludes.
const MIXED: [Rung; 4] = [Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move];

const HOUR: Duration = Duration::from_secs(3_600);

/// Time: long enough for half a dozen looks of an observer that polls.
const IDLE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_notify_an_observer_on_every_rung() {
    let servers = Servers::start().await;
    let process = async |rung: Rung| {
        // Renewed rarely.
        let redis = redis(servers.redis.addr(), 60).await;
        let config = MigrationConfig::new("shop").rung(rung);
        Locks::new(config.open(redis, servers.zk().await).await.unwrap())
    };
    for rung in MIXED {
        let (watching, leading, name) = (process(rung).await, process(rung).await, format!("on {rung}"));
        let mut leaders = watching.election(&name).observe();
        assert!(soon(leaders.next()).await.unwrap().unwrap().is_none());
        for _ in 0..2 {
            let leadership = leading.election(&name).campaign("one").await.unwrap();
            let leader = soon(leaders.next()).await.unwrap().unwrap();
            assert_eq!(leader.unwrap().label(), Some("one"));
            // The token grows as the leader gets the locks of both stores.
            while let Ok(Some(leader)) = timeout(IDLE / 3, leaders.next()).await {
                assert_eq!(leader.unwrap().unwrap().label(), Some("one"));
            }
            let before = servers.redis.calls_of("eval").await;
            assert!(timeout(IDLE, leaders.next()).await.is_err(), "nothing has changed");
            let looks = servers.redis.calls_of("eval").await - before;
            assert!(looks < 5, "{rung}: it looked {looks} times in {IDLE:?}");
            leadership.resign().await.unwrap();
            let leader = soon(leaders.next()).await.unwrap().unwrap();
            assert!(leader.is_none(), "{rung}: {leader:?}");
        }
        watching.close().await.unwrap();
        leading.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_is_lost_before_it_was_given_to_anybody_is_acquired_again() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Dual).await;
    let (_, zk) = servers.apart().await;
    // Each acquisition raises the tokens of the old store.
    let ahead = take(&zk, "ahead").await;
    ahead.raise_token(Token::new(pass(&locks, "a").await.get() + HOUR.as_micros() as u64)).await.unwrap();
    give_back(ahead).await;
    let is_over = AtomicBool::new(false);
    let losing = async {
        while !is_over.load(Ordering::Relaxed) {
            servers.redis.call(&["DEL", "lock:a"]).await;
        }
    };
    let acquiring = async {
        for _ in 0..20 {
            drop(take(&locks, "a").await);
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(losing, acquiring);
}

#[tokio::test]
async fn an_acquisition_that_is_not_polled_keeps_the_lock_of_no_store() {
    let servers = Servers::start().await;
    for rung in [Rung::Dual, Rung::Move] {
        let (one, two, old) = (servers.on(rung).await, servers.on(rung).await, servers.on(Rung::Old).await);
        let name = rung.name();
        let busy = take(&old, name).await;
        let mutex = one.mutex(name);
        let mut acquiring = Box::pin(mutex.acquire());
        while old.inspect(name).await.unwrap().waiters == 0 {
            // Time: it is polled for a while.
            let waits = timeout(Duration::from_millis(50), &mut acquiring).await;
            assert!(waits.is_err(), "{rung}: it waits for the old store");
        }
        give_back(busy).await;
        pass(&two, name).await;
        // It starts over.
        give_back(soon(acquiring).await.unwrap()).await;
    }
}

#[tokio::test]
async fn every_mixture_excludes() {
    let servers = Servers::start().await;
    for first in MIXED {
        for second in MIXED {
            let (one, two) = (servers.on(first).await, servers.on(second).await);
            let name = format!("{first}-{second}");
            for time in ["before", "after"] {
                let guard = take(&one, &name).await;
                assert!(is_busy(&two, &name).await, "{second} beside {first}, {time} anything moved");
                let (waiter, token) = (queue_up(&two, &name).await, guard.token());
                let next = hand_over(guard, waiter).await;
                assert!(next.token() > token, "{second} after {first}, {time}: {} {token}", next.token());
                give_back(next).await;
            }
            assert_eq!(servers.is_moved(&name).await, [first, second].contains(&Rung::Move), "{name}");
            one.close().await.unwrap();
            two.close().await.unwrap();
        }
    }
}

/// The token base of the locks on ZooKeeper, and how often it was written.
async fn base(servers: &Servers) -> Option<i32> {
    let client = zookeeper_client::Client::connect(&servers.zk.connect_string()).await.unwrap();
    client.check_stat("/locks/!token-base").await.unwrap().map(|stat| stat.version)
}

/// How far the tokens of ZooKeeper are ahead of the clock of Redis.
async fn lead(zk: &Locks) -> Duration {
    let (token, clock) =
        (pass(zk, "lead").await.get(), std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64);
    Duration::from_micros(token.saturating_sub(clock))
}

#[tokio::test]
async fn the_lead_of_the_new_tokens_is_bounded_through_modes_elections_and_raises() {
    let servers = Servers::start().await;
    servers.zk.skip_epochs(30).await.unwrap();
    let mover = servers.on(Rung::Move).await;
    for _ in 0..2 {
        pass(&mover, "m").await;
    }
    mover.close().await.unwrap();
    for _ in 0..3 {
        let (dual, zk) = (servers.on(Rung::Dual).await, servers.apart().await.1);
        let written = base(&servers).await;
        for round in 0..8 {
            give_back(dual.rw("d").read().await.unwrap()).await;
            give_back(dual.semaphore("s", 3).acquire().await.unwrap()).await;
            give_back(dual.rw("d").write().await.unwrap()).await;
            assert!(lead(&zk).await < HOUR + HOUR / 10, "round {round}: {:?} ahead", lead(&zk).await);
        }
        let writes = base(&servers).await.unwrap() - written.unwrap();
        assert!(writes <= 1, "the base was written {writes} times");
        dual.close().await.unwrap();
        zk.close().await.unwrap();
        servers.zk.skip_epochs(1).await.unwrap();
    }
    // What a sharer raises by hand comes on top once.
    let (dual, zk) = (servers.on(Rung::Dual).await, servers.apart().await.1);
    let reader = dual.rw("d").read().await.unwrap();
    reader.raise_token(Token::new(reader.token().get() + 2 * HOUR.as_micros() as u64)).await.unwrap();
    for _ in 0..4 {
        give_back(dual.rw("d").read().await.unwrap()).await;
    }
    give_back(reader).await;
    let lead = lead(&zk).await;
    assert!(HOUR < lead && lead < 4 * HOUR, "{lead:?} ahead");
}

/// To know whether the tokens can follow, and how far they are raised.
#[tokio::test]
async fn a_move_asks_the_old_store_for_its_clock_once() {
    let servers = Servers::start().await;
    let (proxy, asked, reads) =
        (servers.proxy(Side::Old), Arc::new(AtomicUsize::new(0)), redis_command("TIME"));
    let (old, zk, seen) = (redis(proxy.addr(), LEASE).await, servers.zk().await, Arc::clone(&asked));
    let locks = Locks::new(MigrationConfig::new("shop").rung(Rung::Move).open(old, zk).await.unwrap());
    proxy.cut_when(move |request| {
        seen.fetch_add(usize::from(reads(request)), Ordering::SeqCst);
        false
    });
    pass(&locks, "a").await;
    assert!(servers.is_moved("a").await);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_guard_of_both_ends_with_either_and_gives_the_other_one_back() {
    let servers = Servers::start().await;
    let (old, new, config) =
        (servers.redis().await, servers.zk().await, MigrationConfig::new("shop").rung(Rung::Dual));
    // Also if the locks were opened on a runtime that has ended since.
    let ends = Builder::new_multi_thread().enable_all().build().unwrap();
    let locks = Locks::new(ends.spawn(config.open(old, new)).await.unwrap().unwrap());
    ends.shutdown_background();
    let (redis, zk) = servers.apart().await;
    for lost in [&redis, &zk] {
        let guard = take(&locks, "a").await;
        assert!(is_busy(&redis, "a").await);
        assert!(is_busy(&zk, "a").await);
        assert!(lost.break_lock("a").await.unwrap());
        assert_eq!(soon(guard.lost()).await, LossReason::Removed);
        // Though the guard is still there.
        pass(&redis, "a").await;
        pass(&zk, "a").await;
        assert!(matches!(guard.state(), GuardState::Lost(_)));
    }
}

#[tokio::test]
async fn the_time_of_a_guard_begins_once_it_has_both_locks() {
    let servers = Servers::start().await;
    let ((redis, zk), hold) = (servers.apart().await, Duration::from_secs(5));
    for (rung, name) in [(Rung::Dual, "dual"), (Rung::Move, "move"), (Rung::Move, "move")] {
        let (locks, options) = (servers.on(rung).await, LockOptions::new().max_hold(hold));
        let held = match servers.is_moved(name).await {
            true => None,
            false => Some(take(&redis, name).await),
        };
        let waiter = locks.mutex_with(name, options).unwrap();
        let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
        until("the lock of the new store is held", async || is_busy(&zk, name).await).await;
        if let Some(held) = held {
            let token = async || zk.inspect(name).await.unwrap().last_token();
            let before = token().await;
            // Time: longer than the guard may hold the lock.
            tokio::time::sleep(2 * hold).await;
            assert_eq!(token().await, before, "{rung}: it was lost during the wait");
            give_back(held).await;
        }
        let guard = soon(waiter).await.unwrap();
        assert_eq!(soon(guard.lost()).await, LossReason::MaxHold, "{rung}");
        // Though the guard is still there.
        pass(&locks, name).await;
    }
}

#[tokio::test]
async fn a_sharer_whose_patience_ends_is_answered_in_time() {
    let servers = Servers::start().await;
    let (dual, redis) = (servers.on(Rung::Dual).await, servers.apart().await.0);
    let writer = redis.rw("a").write().await.unwrap();
    // Time: it ends while the lock is busy.
    let answer = dual.rw("a").try_read_for(Duration::from_secs(1)).await;
    assert!(matches!(answer, Ok(None)), "{answer:?}");
    give_back(writer).await;
}

#[tokio::test]
async fn a_tombstone_that_is_deleted_at_once_is_written_again() {
    let servers = Servers::start().await;
    let proxy = servers.proxy(Side::Old);
    let redis = redis(proxy.addr(), LEASE).await;
    let moving = MigrationConfig::new("shop").rung(Rung::Move);
    let locks = Locks::new(moving.open(redis, servers.zk().await).await.unwrap());
    pass(&locks, "warm").await;
    proxy.hold_after(|request| request.windows(14).any(|part| part == b"polylock:moved"));
    let waiter = acquiring(locks.mutex("a"));
    until("the lock has moved", async || servers.is_moved("a").await).await;
    servers.redis.call(&["DEL", "lock:a"]).await;
    proxy.deliver();
    let guard = come(waiter).await;
    assert!(servers.is_moved("a").await);
    give_back(guard).await;
}

#[tokio::test]
async fn names_that_have_moved_go_on_when_redis_is_down() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Move).await;
    pass(&locks, "moved").await;
    // A client of the old store alone does not know its leader.
    let error = servers.apart().await.0.election("moved").leader().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
    servers.redis.kill();
    pass(&locks, "moved").await;
    let error = locks.mutex("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.redis.start_again().await.unwrap();
    // It has no data any more. With the next connection that is known, and the tombstone is written again.
    pass(&locks, "other").await;
    let guard = take(&locks, "moved").await;
    assert!(servers.is_moved("moved").await);
    give_back(guard).await;
}

/// The old store has failed to say to which migration it belongs, and is asked again a second later.
#[tokio::test]
async fn a_name_that_has_moved_is_unavailable_until_the_process_follows_the_record() {
    let servers = Servers::start().await;
    pass(&servers.on(Rung::Move).await, "moved").await;
    let proxy = servers.proxy(Side::Old);
    let (old, zk) = (redis(proxy.addr(), LEASE).await, servers.zk().await);
    // It asks once more over another connection.
    for time in 0..2 {
        let asked = AtomicUsize::new(0);
        proxy.cut_when(move |request| {
            String::from_utf8_lossy(request).contains("polylock:migration:")
                && asked.fetch_add(1, Ordering::SeqCst) == time
        });
    }
    let locks = Locks::new(MigrationConfig::new("shop").rung(Rung::Old).open(old, zk).await.unwrap());
    assert_eq!(proxy.fired(), 2);
    let error = locks.mutex("moved").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    // It asks again.
    drop(at_last(async || locks.mutex("moved").try_acquire().await).await);
}

#[tokio::test]
async fn a_tombstone_of_another_migration_is_an_error() {
    let servers = Servers::start().await;
    let locks = servers.on(Rung::Move).await;
    pass(&locks, "a").await;
    // As a migration would have written it whose prefix is a part of the name.
    let text = servers.value("a").await.unwrap();
    let other = text.replace("namespace=shop", "namespace=store");
    servers.redis.call(&["SET", "lock:b", &other, "PX", "86400000"]).await;
    let error = locks.mutex("b").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("\"shop\"") && error.to_string().contains("\"store\""), "{error}");
}
