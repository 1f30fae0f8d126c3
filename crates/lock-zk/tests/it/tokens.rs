//! Tokens that grow through everything, and are raised to those of another store.

use std::time::Duration;

use crate::common::{LONG, Servers, TIMEOUT, children, client, config, proxy, through, until_children};
use futures_util::FutureExt;
use lock_core::{ErrorKind, GuardState, Locks, Token};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Then, zk_opcode};
use lock_zk::ZkConfig;
use lock_zk::zookeeper_client::{Acls, Client, CreateMode};

const BASE: &str = "/locks/!token-base";
/// Tokens of Redis are microseconds since 1970.
const REDIS: Token = Token::new(1_790_000_000_000_000);
const MULTI: i32 = 14;

async fn token(locks: &Locks, name: &str) -> Token {
    let guard = locks.mutex(name).acquire().await.unwrap();
    let token = guard.token();
    assert_eq!(locks.inspect(name).await.unwrap().token, Some(token));
    guard.release().await.unwrap();
    token
}

async fn raise(locks: &Locks, name: &str, floor: Token) {
    let guard = locks.mutex(name).acquire().await.unwrap();
    let before = guard.token();
    guard.raise_token(floor).await.unwrap();
    assert_eq!(guard.token(), before, "a token stays what it is");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn no_caller_waits_for_another_one_that_is_paused() {
    let server = crate::common::server().await;
    let locks = config(&server).connect().await.unwrap();
    // It has begun to read the base.
    let (one, two) = (locks.mutex("a"), locks.mutex("b"));
    let mut stuck = Box::pin(one.acquire());
    assert!(stuck.as_mut().now_or_never().is_none());
    let guard = tokio::time::timeout(Duration::from_secs(20), two.acquire()).await;
    guard.expect("another lock is not held up").unwrap().release().await.unwrap();
    stuck.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tokens_continue_those_of_another_store() {
    let server = crate::common::server().await;
    let (one, two) = (config(&server).connect().await.unwrap(), config(&server).connect().await.unwrap());
    // Both know that there is no base.
    let before = token(&two, "a").await.max(token(&one, "a").await);
    raise(&one, "a", REDIS).await;
    let next = token(&two, "a").await;
    assert!(next > REDIS && next > before, "{next}");
    assert!(next.get() - REDIS.get() < 1_000, "and no higher than it must: {next}");
    assert!(token(&one, "a").await > next);
    // What is low enough changes nothing.
    let client = client(&server).await;
    let version = client.check_stat(BASE).await.unwrap().unwrap().version;
    raise(&two, "a", REDIS).await;
    raise(&two, "b", Token::new(1)).await;
    assert_eq!(client.check_stat(BASE).await.unwrap().unwrap().version, version);
    // All later holders see it, also of locks that were never held before.
    let three = config(&server).connect().await.unwrap();
    assert!(token(&three, "b").await > REDIS);
    let higher = Token::new(2 * REDIS.get());
    raise(&three, "b", higher).await;
    for locks in [&one, &two, &three] {
        assert!(token(locks, "b").await > higher);
    }
    // Another dir is another namespace.
    let elsewhere = config(&server).dir("/elsewhere").connect().await.unwrap();
    assert!(token(&elsewhere, "a").await < REDIS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_base_that_does_not_change_costs_nothing() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let (ours, other) = (through(&proxy).connect().await.unwrap(), config(&server).connect().await.unwrap());
    raise(&other, "a", REDIS).await;
    let round = async || {
        let before = proxy.requests();
        let guard = ours.mutex("a").acquire().await.unwrap();
        let token = guard.token();
        guard.release().await.unwrap();
        (proxy.requests() - before, token)
    };
    // Heartbeats come in between.
    let least = async || {
        let mut rounds = Vec::new();
        for _ in 0..10 {
            rounds.push(round().await.0);
        }
        rounds.into_iter().min().unwrap()
    };
    round().await;
    assert_eq!(least().await, 2, "create, delete");
    raise(&other, "a", Token::new(2 * REDIS.get())).await;
    let (requests, token) = round().await;
    assert!(requests >= 3, "it is read again");
    assert!(token.get() > 2 * REDIS.get());
    assert_eq!(least().await, 2);
}

/// The next holder waits while the holder raises the base, and learns of its grant by an event, or by a listing.
async fn rounds(holder: &Locks, waiter: &Locks, watcher: &Client, count: u64) {
    let mut floor = REDIS;
    for round in 0..count {
        let guard = holder.mutex("a").acquire().await.unwrap();
        let (lock, patience) = (waiter.mutex("a"), Duration::from_secs(60));
        let next = tokio::spawn(async move { lock.try_acquire_for(patience).await.unwrap().unwrap() });
        // Now and then it comes only when the lock is as good as free.
        if round % 3 > 0 {
            until_children(watcher, "a", 2).await;
        }
        floor = Token::new(floor.get().max(guard.token().get()) + 1_000_000);
        guard.raise_token(floor).await.unwrap();
        guard.release().await.unwrap();
        let next = next.await.unwrap();
        assert!(next.token() > floor, "round {round}: {} is not above {floor}", next.token());
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_next_holder_cannot_miss_a_raise() {
    let server = crate::common::server().await;
    let (one, two) = (config(&server).connect().await.unwrap(), config(&server).connect().await.unwrap());
    rounds(&one, &two, &client(&server).await, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn the_next_holder_cannot_miss_a_raise_on_a_follower() {
    let ensemble = Servers::start().await;
    let leader = ensemble.leader().await.unwrap();
    let (first, second) = (&ensemble.nodes()[(leader + 1) % 3], &ensemble.nodes()[(leader + 2) % 3]);
    let connect = |server: &ZooKeeper| config(server).session_timeout(4 * TIMEOUT).connect();
    let (one, two) = (connect(first).await.unwrap(), connect(second).await.unwrap());
    let watcher = client(second).await;
    rounds(&one, &two, &watcher, 20).await;
    // A server that was away has to catch up, and shows the grant no earlier than the raise.
    let guard = one.mutex("a").acquire().await.unwrap();
    let lock = two.mutex("a");
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_children(&watcher, "a", 2).await;
    second.stop();
    let floor = Token::new(guard.token().get() + 1_000_000);
    guard.raise_token(floor).await.unwrap();
    guard.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!next.is_finished());
    second.cont();
    let next = next.await.unwrap();
    assert!(next.token() > floor, "{} is not above {floor}", next.token());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_raise_is_not_missed_while_cut_off() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let (one, two) = (config(&server).connect().await.unwrap(), through(&proxy).connect().await.unwrap());
    let watcher = client(&server).await;
    let mut last = token(&two, "a").await;
    for queued in [false, true] {
        let guard = one.mutex("a").acquire().await.unwrap();
        let lock = two.mutex("a");
        let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
        until_children(&watcher, "a", 2).await;
        proxy.refuse(true);
        proxy.rst();
        let floor = Token::new(last.get() + 1_000_000);
        guard.raise_token(floor).await.unwrap();
        if queued {
            guard.release().await.unwrap();
            proxy.heal();
        } else {
            proxy.heal();
            guard.release().await.unwrap();
        }
        let next = next.await.unwrap();
        assert!(next.token() > floor, "{} is not above {floor}", next.token());
        last = next.token();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn only_a_holder_raises() {
    let server = crate::common::server().await;
    let (locks, operator) = (config(&server).connect().await.unwrap(), client(&server).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let node = children(&operator, "a").await.pop().unwrap();
    operator.delete(&format!("/locks/a/{node}"), None).await.unwrap();
    assert_eq!(guard.raise_token(REDIS).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(guard.state(), GuardState::Lost(_)));
    assert!(operator.check_stat(BASE).await.unwrap().is_none());
    let guard = locks.mutex("b").acquire().await.unwrap();
    let highest = Token::new(i64::MAX.unsigned_abs());
    assert_eq!(guard.raise_token(highest).await.unwrap_err().kind(), ErrorKind::Exhausted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn raises_at_the_same_time_do_not_undo_each_other() {
    let server = crate::common::server().await;
    let mut raising = tokio::task::JoinSet::new();
    for lock in 1..=6_u64 {
        let locks = config(&server).connect().await.unwrap();
        raising.spawn(async move {
            let name = lock.to_string();
            for round in 1..=5_u64 {
                let floor = Token::new(lock * 1_000_000_000 + round * 1_000_000);
                let guard = locks.mutex(&name).acquire().await.unwrap();
                guard.raise_token(floor).await.unwrap();
                guard.release().await.unwrap();
                // Others raise the base meanwhile.
                let next = locks.mutex(&name).acquire().await.unwrap();
                assert!(next.token() > floor, "{name}: {} is not above {floor}", next.token());
                next.release().await.unwrap();
            }
        });
    }
    while let Some(ended) = raising.join_next().await {
        ended.unwrap();
    }
    let floor = Token::new(6_005_000_000);
    assert!(token(&config(&server).connect().await.unwrap(), "a").await > floor);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_raise_by_an_older_holder_fits_below_another_one() {
    let server = crate::common::server().await;
    let connect = async || config(&server).connect().await.unwrap();
    let (one, two, three) = (connect().await, connect().await, connect().await);
    raise(&one, "x", REDIS).await;
    let older = one.mutex("a").acquire().await.unwrap();
    let lock = two.mutex("a");
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_children(&client(&server).await, "a", 2).await;
    let newer = three.mutex("b").acquire().await.unwrap();
    let (low, high) = (Token::new(2 * REDIS.get()), Token::new(3 * REDIS.get()));
    newer.raise_token(high).await.unwrap();
    // All sessions know of that one.
    for locks in [&one, &two, &three] {
        assert!(token(locks, "c").await > high);
    }
    older.raise_token(low).await.unwrap();
    older.release().await.unwrap();
    let next = next.await.unwrap();
    assert!(low < next.token() && next.token() < high, "{}", next.token());
    next.release().await.unwrap();
    newer.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_burst_of_raises_leaves_holders_their_token_and_waiters_their_turn() {
    let server = crate::common::server().await;
    let connect = async || config(&server).connect().await.unwrap();
    let (one, two, operator) = (connect().await, connect().await, client(&server).await);
    raise(&one, "x", REDIS).await;
    let long = one.mutex("a").acquire().await.unwrap();
    let lock = two.mutex("a");
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    until_children(&operator, "a", 2).await;
    let turn = children(&operator, "a").await.pop();
    let mut floor = REDIS.get();
    for mover in 0..20 {
        let guard = one.mutex(format!("m{mover}")).acquire().await.unwrap();
        floor += 1_000_000_000;
        guard.raise_token(Token::new(floor)).await.unwrap();
        guard.release().await.unwrap();
    }
    assert!(one.inspect("a").await.unwrap().token.is_some_and(|token| token >= long.token()));
    long.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(children(&operator, "a").await.pop(), turn, "it is granted the lock with its first node");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_holder_of_a_shared_lock_raises_too() {
    let server = crate::common::server().await;
    let (one, two) = (config(&server).connect().await.unwrap(), config(&server).connect().await.unwrap());
    let (first, second) = (one.rw("a").read().await.unwrap(), two.rw("a").read().await.unwrap());
    second.raise_token(REDIS).await.unwrap();
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = one.rw("a").write().await.unwrap();
    assert!(writer.token() > REDIS);
    writer.release().await.unwrap();
}

/// What elections of a leader skip, in transactions.
const ELECTION: u64 = 1 << 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_sharer_raises_the_tokens_of_all_locks_no_higher_than_it_must() {
    let server = ZooKeeper::start().await.unwrap();
    server.skip_epochs(30).await.unwrap();
    let locks = config(&server).connect().await.unwrap();
    let mut floor = REDIS;
    for _ in 0..5 {
        let reader = locks.rw("a").read().await.unwrap();
        reader.raise_token(floor).await.unwrap();
        reader.release().await.unwrap();
        let other = token(&locks, "b").await;
        assert!(other > floor && other.get() - floor.get() < 1_000, "{other} above {floor}");
        floor = other;
    }
    locks.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn elections_skip_few_tokens_above_a_base() {
    let server = ZooKeeper::start().await.unwrap();
    let connect = async || config(&server).connect().await.unwrap();
    let locks = connect().await;
    raise(&locks, "a", REDIS).await;
    let (mut last, elections) = (token(&locks, "a").await, 4);
    let first = last;
    for _ in 0..elections {
        locks.close().await.unwrap();
        server.skip_epochs(1).await.unwrap();
        let locks = connect().await;
        for name in ["a", "b", "a"] {
            let next = token(&locks, name).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        locks.close().await.unwrap();
    }
    let skipped = last.get() - first.get();
    assert!(skipped < elections * ELECTION / 100, "{skipped} tokens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_raise_is_lost() {
    for then in [Then::Reset, Then::Hang] {
        let server = crate::common::server().await;
        let proxy = proxy(&server);
        let through = through(&proxy).session_timeout(LONG);
        let (locks, other) = (through.connect().await.unwrap(), config(&server).connect().await.unwrap());
        let guard = locks.mutex("a").acquire().await.unwrap();
        proxy.swallow_when(zk_opcode(MULTI), then);
        guard.raise_token(REDIS).await.unwrap();
        assert_eq!(proxy.fired(), 1);
        guard.release().await.unwrap();
        assert!(token(&other, "a").await > REDIS);
        assert_eq!(client(&server).await.check_stat(BASE).await.unwrap().unwrap().version, 0, "written once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_broken_base_is_reported() {
    let server = crate::common::server().await;
    let (locks, operator) = (config(&server).connect().await.unwrap(), client(&server).await);
    let mut last = token(&locks, "a").await;
    raise(&locks, "a", REDIS).await;
    // A client that has seen it continues from there.
    operator.delete(BASE, None).await.unwrap();
    for _ in 0..2 {
        let next = token(&locks, "a").await;
        assert!(next > last && next > REDIS);
        last = next;
    }
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create(BASE, b"many", &open).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(BASE), "{error}");
    until_children(&operator, "a", 0).await;
    operator.set_data(BASE, i64::MAX.to_string().as_bytes(), None).await.unwrap();
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    until_children(&operator, "a", 0).await;

    // Only a client with the credentials can read it.
    let private = ZkConfig::new(server.connect_string()).credentials("me", "Pa55").dir("/mine");
    let mine = private.session_timeout(TIMEOUT).connect().await.unwrap();
    raise(&mine, "a", REDIS).await;
    let (acl, _) = {
        operator.auth("digest", b"me:Pa55").await.unwrap();
        operator.get_acl("/mine/!token-base").await.unwrap()
    };
    assert_eq!(acl[0].scheme(), "digest");
}

/// The tokens of tasks of one process that get the lock one after the other.
async fn tasks(locks: &Locks, name: &str, count: usize) -> Vec<Token> {
    let first = locks.mutex(name).acquire().await.unwrap();
    let (sender, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    sender.send(first.token()).unwrap();
    for _ in 1..count {
        let (mutex, sender) = (locks.mutex(name), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            sender.send(guard.token()).unwrap();
            guard.release().await.unwrap();
        });
    }
    while locks.inspect(name).await.unwrap().waiters < count - 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(sender);
    first.release().await.unwrap();
    let mut all = Vec::new();
    while let Some(token) = tokio::time::timeout(LONG, tokens.recv()).await.unwrap() {
        all.push(token);
    }
    assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    assert_eq!(all.len(), count);
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_goes_from_task_to_task_with_the_tokens_of_its_block() {
    let server = crate::common::server().await;
    let locks = config(&server).connect().await.unwrap();
    let in_a_row =
        |tokens: &[Token]| tokens.windows(2).filter(|pair| pair[0].get() + 1 == pair[1].get()).count();
    let tokens = tasks(&locks, "a", 20).await;
    assert_eq!(tokens[0].get() % 16, 0);
    // A busy machine ends a series early.
    assert!(in_a_row(&tokens) > 0, "{tokens:?}");
    let each_asks = config(&server).local_handovers(1).connect().await.unwrap();
    assert_eq!(in_a_row(&tasks(&each_asks, "a", 5).await), 0);

    // A base that another lock's holder writes is beyond all blocks; what is low enough writes none.
    let other = config(&server).connect().await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    raise(&other, "b", Token::new(1)).await;
    assert!(client(&server).await.check_stat(BASE).await.unwrap().is_none());
    raise(&other, "b", Token::new(token(&other, "b").await.get() + 1_000)).await;
    let (mutex, held_token) = (locks.mutex("held"), held.token());
    let next = tokio::spawn(async move { mutex.acquire().await.unwrap().token() });
    while locks.inspect("held").await.unwrap().waiters == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    held.release().await.unwrap();
    let passed = next.await.unwrap();
    assert_eq!(passed.get(), held_token.get() + 1);
    assert!(token(&other, "held").await > passed);
    let above = tasks(&locks, "a", 5).await;
    assert!(above[0] > tokens[19]);
    assert_eq!(in_a_row(&above), 0, "above a base each task is granted the lock: {above:?}");
}
